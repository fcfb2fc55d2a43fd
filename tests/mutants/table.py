"""The table of mutations: one small defect of the product each, and the tests that must fail with it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TABLE = Path(__file__).with_name("mutations.toml")


class DoesNotApplyError(Exception):
    """The text that a mutation replaces is not in its file exactly once."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A defect: in one file, `before` is replaced with `after`; `tests` are what pytest runs."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.file.rpartition("/")[0]

    def apply(self, root: Path) -> str:
        """The text of the file in the tree at `root`, with the defect."""
        path = root / self.file
        if not path.is_file():
            raise DoesNotApplyError(f"{self.name}: there is no file {self.file}")
        source = path.read_text()
        count = source.count(self.before)
        if count != 1:
            raise DoesNotApplyError(f"{self.name}: {self.before!r} occurs {count} times in {self.file}, expected once")
        return source.replace(self.before, self.after)


def read_mutations() -> list[Mutation]:
    files = tomllib.loads(_TABLE.read_text())
    return [_mutation(file, name, entry) for file, entries in files.items() for name, entry in entries.items()]


def _mutation(file: str, name: str, entry: Mapping[str, str]) -> Mutation:
    return Mutation(name, file, entry["before"], entry["after"], tuple(entry["tests"].split()))

"""Replays recorded decisions from files and compares them with the engine's.

`longhorn/vectors.py` and `generic/vectors.py` each run one kind of recorded decisions with a `Runner`.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from scheduler_core import errors
from scheduler_core.structs import Struct

_PROGRESS_INTERVAL = 500
_Schema = TypeVar("_Schema")
Vector = dict[str, Any]


class InputError(errors.CoreError):
    """A file does not hold recorded decisions."""


class Runner(Struct, Generic[_Schema], frozen=True):
    """``python -m MODULE FILE...`` for one kind of recorded decisions."""

    module: str
    description: str
    # What every line must have; it is checked first, to distinguish a malformed line from a fault of the engine.
    schema: type[_Schema]
    find_problem: Callable[[_Schema], str]  # returns what else is wrong with a line, "" for nothing
    check: Callable[[Vector], str]  # returns the difference between a recorded decision and the engine's, "" for none

    def read(self, path: Path) -> Iterable[Vector]:
        """Returns the decisions of a file, one JSON object per line, each parsed once the caller takes it.

        Empty lines are skipped.

        Raises:
            InputError: the file cannot be read, or a line is no recorded decision
        """
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        numbered = enumerate(lines, start=1)
        return (self._parse_vector(line, f"{path}:{number}") for number, line in numbered if line.strip())

    def main(self, arguments: Sequence[str]) -> int:
        """Replays files and returns the exit code: 0 if all decisions are reproduced, 1 if not, 2 for bad input."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.description)
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl", help="recorded decisions, one a line")
        files = parser.parse_args(arguments).files
        try:
            total = 0
            failed = 0
            show_progress = sys.stderr.isatty()
            for vector in (vector for path in files for vector in self.read(path)):
                total += 1
                mismatch = self.check(vector)
                if mismatch:
                    failed += 1
                    print(mismatch)
                if show_progress and total % _PROGRESS_INTERVAL == 0:
                    print(f"\r{total} decisions", end="", file=sys.stderr, flush=True)
            if show_progress:
                print("\r", end="", file=sys.stderr)
            if not total:
                raise InputError(f"no recorded decision in {', '.join(map(str, files))}")
        except errors.CoreError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{total - failed} passed, {failed} failed")
        return 1 if failed else 0

    def _parse_vector(self, line: bytes, where: str) -> Vector:
        try:
            vector = msgspec.json.decode(line, type=Vector)
            problem = self.find_problem(msgspec.convert(vector, self.schema))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"{where}: not a recorded decision: {error}") from error
        if problem:
            raise InputError(f"{where}: not a recorded decision: {problem}")
        return vector

"""Replaying recorded decisions from files: what the runners of Longhorn's and of the generic scheduler's have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from scheduler_core.errors import CoreError

_PROGRESS_EVERY: Final = 500
_Form = TypeVar("_Form")
Vector = dict[str, Any]


class InputError(CoreError):
    """A file that cannot be read as recorded decisions."""


@dataclass(frozen=True, slots=True)
class Runner(Generic[_Form]):
    """``python -m MODULE FILE...`` for one kind of recorded decisions.

    Attributes:
        form: what every line must have, checked before it is asked so that a malformed one is told from a fault of the engine
        fault: what else is wrong with a line, "" for nothing
        check: the difference between a recorded decision and the engine's, which str() shows, or None
    """

    module: str
    description: str
    form: type[_Form]
    fault: Callable[[_Form], str]
    check: Callable[[Vector], object | None]

    def read(self, path: Path) -> Iterator[Vector]:
        """The decisions of a file, one JSON object a line; empty lines are skipped.

        Raises:
            InputError: the file cannot be read, or a line is no recorded decision
        """
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield self._vector(line, f"{path}:{number}")

    def main(self, arguments: Sequence[str]) -> int:
        """Runs the files named as arguments; 0 if all decisions are reproduced, 1 if not, 2 for bad input or none at all."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.description)
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl", help="recorded decisions, one a line")
        files = parser.parse_args(arguments).files
        try:
            total, failed = self._replay(files)
            if not total:
                raise InputError(f"no recorded decision in {', '.join(map(str, files))}")
        except CoreError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{total - failed} passed, {failed} failed")
        return 1 if failed else 0

    def _vector(self, line: bytes, where: str) -> Vector:
        try:
            vector = msgspec.json.decode(line, type=Vector)
            fault = self.fault(msgspec.convert(vector, self.form))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"{where}: not a recorded decision: {error}") from error
        if fault:
            raise InputError(f"{where}: not a recorded decision: {fault}")
        return vector

    def _replay(self, paths: Sequence[Path]) -> tuple[int, int]:
        """How many decisions there are, and how many of them the engine does not reproduce, which are printed on the way."""
        total, failed, shown = 0, 0, sys.stderr.isatty()
        for vector in (vector for path in paths for vector in self.read(path)):
            total += 1
            mismatch = self.check(vector)
            if mismatch is not None:
                failed += 1
                print(mismatch)
            if shown and total % _PROGRESS_EVERY == 0:
                print(f"\r{total} decisions", end="", file=sys.stderr, flush=True)
        if shown:
            print("\r", end="", file=sys.stderr)
        return total, failed

"""Replaying recorded decisions from files: what the runners of Longhorn's and of the generic scheduler's have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from scheduler_core.errors import CoreError

_PROGRESS_EVERY: Final = 500
_Mismatch = TypeVar("_Mismatch")
Vector = dict[str, Any]


class InputError(CoreError):
    """A file that cannot be read as recorded decisions."""


def lines_of(path: Path) -> Iterator[tuple[bytes, str]]:
    """The lines of a file that are not empty, each with where it is.

    Raises:
        InputError: the file cannot be read
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield line, f"{path}:{number}"


def replay(vectors: Iterable[Vector], check: Callable[[Vector], _Mismatch | None]) -> tuple[int, list[_Mismatch]]:
    """How many decisions there are, and those the engine does not reproduce, which are printed on the way."""
    total, failed, shown = 0, list[_Mismatch](), sys.stderr.isatty()
    for vector in vectors:
        total += 1
        mismatch = check(vector)
        if mismatch is not None:
            failed.append(mismatch)
            print(mismatch)
        if shown and total % _PROGRESS_EVERY == 0:
            print(f"\r{total} decisions", end="", file=sys.stderr, flush=True)
    if shown:
        print("\r", end="", file=sys.stderr)
    return total, failed


def command(
    module: str, description: str, arguments: Sequence[str], run: Callable[[Sequence[Path]], tuple[int, list[Any]]]
) -> int:
    """Runs the files named as arguments; 0 if all decisions are reproduced, 1 if not, 2 for bad input or none at all."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl", help="recorded decisions, one a line")
    files = parser.parse_args(arguments).files
    try:
        total, failed = run(files)
        if not total:
            raise InputError(f"no recorded decision in {', '.join(map(str, files))}")
    except CoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{total - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0

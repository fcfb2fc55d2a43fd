"""Runs each mutation's tests with the mutation applied, and says which of them fail: `make mutants`. The working tree is copied
to a temporary folder for each worker, so it never changes. First, all mutations are applied together and must pass types and
lint, and all their tests must pass without any. Then each mutation is applied alone.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import typer

from tests.mutants.table import ROOT, DoesNotApplyError, Mutation, read_mutations

_TIMEOUT = 300.0
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "dist", ".hypothesis", ".pytest_cache", "*.egg-info")
_PYTEST = ("-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly")
_LINT = {
    "ruff check": ("-m", "ruff", "check", "."),
    "mypy": ("-m", "mypy"),
    "lint-imports": ("-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"),
}
_FAILED = re.compile(r"^FAILED (.+?)(?: - |$)", re.MULTILINE)
_TESTS_FAILED = 1


class _Copy:
    """A copy of the working tree, in which one command runs at a time."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(ROOT, folder, ignore=_NOT_COPIED, symlinks=True)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        self._folder = folder
        self._writes = 0

    @contextmanager
    def mutate(self, mutations: Iterable[Mutation]) -> Iterator[None]:
        written: list[str] = []
        try:
            for mutation in mutations:
                text = mutation.apply(self._folder)
                written.append(mutation.file)
                path = self._folder / mutation.file
                path.write_text(text)
                # Python compares times in whole seconds: each content of a file has its own, or old bytecode would run.
                self._writes += 1
                os.utime(path, (self._writes, self._writes))
            yield
        finally:
            for file in written:
                shutil.copy2(ROOT / file, self._folder / file)

    def run(self, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """The exit code, or None after the time-out, and what was printed."""
        # The environment has the working tree installed as editable: the copy comes first.
        environment = {**os.environ, "PYTHONPATH": str(self._folder)}
        command = [sys.executable, *arguments]
        try:
            result = subprocess.run(
                command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return result.returncode, result.stdout + result.stderr


def _verdict(copy: _Copy, mutation: Mutation) -> tuple[bool, str]:
    """Whether a test fails with the mutation, and a line that says which, or what happened instead."""
    with copy.mutate([mutation]):
        code, output = copy.run([*_PYTEST, "-x", *mutation.tests], _TIMEOUT)
    tests = _FAILED.findall(output)
    if code == _TESTS_FAILED and tests:
        return True, f"caught    {mutation.name}: {tests[0]}"
    if code == 0:
        return False, f"SURVIVED  {mutation.name}: {' '.join(mutation.tests)}"
    end = "no end in time" if code is None else f"pytest ended with {code}: {output.strip().splitlines()[-1:]}"
    return False, f"INVALID   {mutation.name}: {end}"


def _check_tree(copy: _Copy, mutations: Sequence[Mutation], workers: int) -> str:
    """Why a failing test would prove nothing, or an empty text."""
    with copy.mutate(mutations):
        for name, arguments in _LINT.items():
            code, output = copy.run(arguments, 10 * _TIMEOUT)
            if code != 0:
                return f"{name} sees a mutation, so no test is needed:\n{output}"
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    code, output = copy.run([*_PYTEST, "-n", str(workers), *tests], 10 * _TIMEOUT)
    return "" if code == 0 else f"the tests fail without a mutation:\n{output}"


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Run only the mutation with this name; may be repeated.")
    ] = None,
    workers: Annotated[int, typer.Option(help="How many run at the same time.")] = os.cpu_count() or 1,
    *,
    list_: Annotated[
        bool, typer.Option("--list", help="Print the mutations and their tests, and run nothing.")
    ] = False,
) -> None:
    """Shows that the tests notice defects: each mutation of tests/mutants/mutations.toml must make one of its tests fail."""
    mutations = [mutation for mutation in read_mutations() if not only or mutation.name in only]
    missing = set(only or ()) - {mutation.name for mutation in mutations}
    if missing:
        sys.exit(f"no such mutation: {', '.join(sorted(missing))}; --list prints all")
    if list_:
        for mutation in mutations:
            print(f"{mutation.name}\n    {mutation.file}: {mutation.before!r} -> {mutation.after!r}")
            print(f"    {' '.join(mutation.tests)}")
        return
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [_Copy(Path(folder) / str(number)) for number in range(workers)]
        print(f"types and lint with all {len(mutations)} mutations, then their tests with none", flush=True)
        try:
            problem = _check_tree(copies[0], mutations, workers)
        except DoesNotApplyError as error:
            sys.exit(f"a mutation no longer applies: {error}")
        if problem:
            sys.exit(problem)
        print(f"passed after {time.monotonic() - start:.0f} s", flush=True)
        survivors = _run_each(copies, mutations)
    print(f"{len(mutations) - survivors} of {len(mutations)} caught, in {time.monotonic() - start:.0f} s")
    sys.exit(survivors > 0)


def _run_each(copies: Sequence[_Copy], mutations: Sequence[Mutation]) -> int:
    """Prints a line for each mutation, and returns how many were not caught."""
    free: SimpleQueue[_Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def run(mutation: Mutation) -> tuple[bool, str]:
        copy = free.get()
        try:
            return _verdict(copy, mutation)
        finally:
            free.put(copy)

    survivors = 0
    with ThreadPoolExecutor(len(copies)) as pool:
        futures = [pool.submit(run, mutation) for mutation in mutations]
        for number, future in enumerate(as_completed(futures), start=1):
            caught, line = future.result()
            survivors += not caught
            print(f"{number:3}/{len(mutations)}  {line}", flush=True)
    return survivors


if __name__ == "__main__":
    typer.run(main)

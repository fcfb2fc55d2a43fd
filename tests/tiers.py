"""Runs the test tiers of the Makefile one after the other, and says what is running, how far it is and how long each tier took.

Data flow: a tier is a list of commands. A tier of tests that failed runs its failed tests once more, alone. What passes then is printed as
`flaky: NAME` at the end; what fails again fails the run. `soak` repeats the campaigns with other seeds until its minutes are over.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
KNOWN_FLAKY = ROOT / "tests/flaky.txt"
_LAST_FAILED = ".pytest_cache/v/cache/lastfailed"
_BIN = Path(sys.executable).parent
PYTEST = (str(_BIN / "pytest"),)
_TESTS_FAILED = 1
_STALLED = -1
# More failures than these are no chance: running them again, one at a time, would only take long.
_MOST_RETRIED = 20
# Some unit tests wait for timers, so one more of them than there are processors keeps these busy; each further worker loads all files
# again, ten seconds. The end-to-end tests run a cluster each, and have time bounds, which hold with one test per processor.
_PROCESSORS = os.cpu_count() or 1
_UNIT_WORKERS = str(_PROCESSORS + 1)

# A test that its own time-out (pyproject.toml) cannot end prints where each thread stands.
_STACKS = ("-o", "faulthandler_timeout=180")
_TEST_FILES = sorted(ROOT.glob("tests/**/test_*.py"))
_IS_END_TO_END = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.e2e\b", re.MULTILINE)
_COMPILED = ROOT / ".pytest_cache/compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What a tier proves, and its commands."""

    proves: str
    commands: Sequence[Sequence[str]]
    limit: float = 900  # after how many seconds a command counts as standing still, and begins once more


def is_end_to_end(path: Path) -> bool:
    """Whether every test of a file is end-to-end."""
    return _IS_END_TO_END.search(path.read_text()) is not None


def _end_to_end(mark: str, marks: str) -> Sequence[Sequence[str]]:
    # Collecting all files, which each worker does, takes longer than a dozen tests.
    text = f"pytest.mark.{mark}"
    files = [str(path.relative_to(ROOT)) for path in _TEST_FILES if text in path.read_text()]
    return [[*PYTEST, "-n", "auto", "-v", "--durations=25", "-m", marks, *files]]


TIERS: Mapping[str, Tier] = {
    "lint": Tier(
        proves="format, lint, types and the layers of packages",
        commands=[
            [str(_BIN / "ruff"), "format", "--check", "."],
            [str(_BIN / "ruff"), "check", "."],
            [str(_BIN / "mypy")],
            [str(_BIN / "lint-imports"), "--no-cache"],
        ],
    ),
    "unit": Tier(
        proves="rules, parts, documents and recorded answers",
        commands=[[*PYTEST, "-n", _UNIT_WORKERS, "-q", *_STACKS, "-m", "not e2e"]],
    ),
    "smoke": Tier(
        proves="each program, and each class of fault, on the real control plane",
        commands=_end_to_end("smoke", "smoke"),
    ),
    "rest": Tier(
        proves="all other end-to-end tests but the campaigns",
        commands=_end_to_end("e2e", "e2e and not smoke and not campaign"),
        limit=2400,
    ),
    # Smoke and the rest at once: a file with tests of both starts its cluster once.
    "e2e": Tier(
        proves="every end-to-end test but the campaigns",
        commands=_end_to_end("e2e", "e2e and not campaign"),
        limit=2400,
    ),
}


def run(names: Sequence[str]) -> int:
    """Runs tiers until one fails; returns an exit code."""
    seconds: dict[str, float] = {}
    flaky: list[str] = []
    failed = ""
    for number, name in enumerate(names, start=1):
        _say(f"{number} of {len(names)}: {name}: {TIERS[name].proves}")
        started = time.monotonic()
        if name == "unit":
            _compile_tests()
        passed = all(_run_command(command, TIERS[name].limit, flaky) for command in TIERS[name].commands)
        seconds[name] = time.monotonic() - started
        if not passed:
            failed = name
            break
    _say(", ".join(f"{name} {_minutes(each)}" for name, each in seconds.items()))
    for name in flaky:
        print(f"flaky: {name}{' (known)' if name in known_flaky() else ''}", flush=True)
    if failed:
        _say(f"{failed} failed")
    return 1 if failed else 0


def soak(minutes: float, first_seed: int) -> int:
    """Repeats the campaigns, each time with the next seed, for this long; returns an exit code. A campaign that has begun is finished."""
    end = time.monotonic() + 60 * minutes
    fuzzing = [
        *PYTEST,
        "-n",
        _UNIT_WORKERS,
        "-q",
        "-o",
        "timeout=3600",
        "-m",
        "not e2e",
        "tests/fuzz",
        "tests/property",
    ]
    [campaigns] = _end_to_end("campaign", "campaign")
    failures: list[str] = []
    rounds = 0
    while not rounds or time.monotonic() < end:
        seed = str(first_seed + rounds // 2)
        name, command = [("fuzzing", [*fuzzing, f"--hypothesis-seed={seed}"]), ("campaigns", campaigns)][rounds % 2]
        _say(f"{name}, seed {seed}: {max(0, end - time.monotonic()) / 60:.0f} minutes are left")
        environment = {"FUZZ_EXAMPLES": "1000", "EXAMPLES_FACTOR": "10", **os.environ, "SOAK_SEED": seed}
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:  # no shell
            failures.append(f"{name}, seed {seed}")
        rounds += 1
    _say(f"{rounds} runs, {len(failures)} failed")
    for failure in failures:
        print(f"failed: {failure}", flush=True)
    return 1 if failures else 0


def _compile_tests() -> None:
    """Writes the byte code of changed unit tests, which otherwise each worker would compile at the same time."""
    before = _COMPILED.stat().st_mtime if _COMPILED.exists() else 0
    changed = [str(path) for path in _TEST_FILES if path.stat().st_mtime >= before and not is_end_to_end(path)]
    if changed:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        parts = [changed[start::_PROCESSORS] for start in range(_PROCESSORS)]
        commands = [[*PYTEST, "--collect-only", "-q", "-p", "no:cacheprovider", *part] for part in parts if part]
        collections = [
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)  # no shell
            for command in commands
        ]
        for collection in collections:
            collection.wait()
        _COMPILED.parent.mkdir(exist_ok=True)
        _COMPILED.touch()


def _run_command(command: Sequence[str], limit: float, flaky: list[str]) -> bool:
    code = _run(command, limit)
    if code == _STALLED:
        flaky.append(f"{Path(command[0]).name}: no end after {limit:g} s")
        code = _run(command, limit)
    if code != _TESTS_FAILED or command[0] != PYTEST[0]:
        return code == 0
    first = _last_failed()
    if not 0 < len(first) <= _MOST_RETRIED:
        return False
    _say(f"{len(first)} failed and run once more, alone")
    options = ("-n", "0", "-v", "--last-failed", "--last-failed-no-failures=none")
    again = [*PYTEST, *options, *command[command.index("-m") :]]
    passed = _run(again, limit) == 0
    flaky += sorted(first - _last_failed())
    return passed


def _run(command: Sequence[str], limit: float) -> int:
    words = [
        Path(word).name if word.startswith(str(_BIN)) else word for word in command if not word.startswith("tests/")
    ]
    print("$", " ".join(words), flush=True)
    try:
        return subprocess.run(command, cwd=ROOT, check=False, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return _STALLED


def _last_failed() -> set[str]:
    try:
        return set(json.loads((ROOT / _LAST_FAILED).read_text()))
    except FileNotFoundError:
        return set()


def known_flaky() -> set[str]:
    """The tests of `flaky.txt`."""
    return {line for line in KNOWN_FLAKY.read_text().splitlines() if line and not line.startswith("#")}


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.tiers", description=__doc__)
    parser.add_argument("tiers", nargs="+", choices=[*TIERS, "soak"], help="what to run, in this order; or soak alone")
    parser.add_argument("--minutes", type=float, default=30, help="how long soak repeats the campaigns (default: 30)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of soak's first campaigns (default: 1)")
    options = parser.parse_args()
    return soak(options.minutes, options.seed) if options.tiers == ["soak"] else run(options.tiers)


if __name__ == "__main__":
    sys.exit(main())

"""How much processor time the command line takes to start: `--version`, `--help`, and `explain` on the example.

The least of some runs, with byte code as in the image, counts: other processes can only add to it.
"""

import compileall
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PROGRAM = str(Path(sys.executable).with_name("longhorn-extender"))
_RUNS = 10
# Budgets in seconds.
_COMMANDS = {"--version": 0.25, "--help": 0.25, "explain --snapshot examples/mixed-cluster/snapshot.yaml": 0.6}


def run() -> str:
    """Measures each command, and returns the table."""
    for package in ("app", "scheduler_core"):
        compileall.compile_dir(_ROOT / package, quiet=1)
    rows = [f"{'start: CPU seconds of a command':<64}{'least':>8}{'budget':>8}"]
    for command, budget in _COMMANDS.items():
        least = min(_cpu_seconds(command.split()) for _ in range(_RUNS))
        rows.append(f"{command:<64}{least:>8.2f}{budget:>8.2f}")
    return "\n".join(["", *rows])


def _cpu_seconds(arguments: list[str]) -> float:
    process = subprocess.Popen([_PROGRAM, *arguments], cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return usage.ru_utime + usage.ru_stime

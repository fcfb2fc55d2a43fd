"""The image's stages have what the commands in them import."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAGES = {
    match[1]: match[2]
    for match in re.finditer(
        r"^FROM [^\n]* AS (\S+)\n(.*?)(?=^FROM |\Z)", (ROOT / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL
    )
}
# Whatever the virtual environment of the tests has installed from here: only what is in the folder counts.
PROGRAM = """
import runpy, sys
staged, repository, *arguments = sys.argv[1:]
sys.path[:] = [staged, *(path for path in sys.path if path not in ("", repository))]
sys.argv = ["devcluster", *arguments]
runpy.run_module("devcluster", run_name="__main__", alter_sys=True)
"""


def copied(*stages: str) -> set[str]:
    """The folders of the repository that these stages copy to the same name."""
    text = "".join(STAGES[stage] for stage in stages)
    return {found[1] for found in re.finditer(r"^COPY (\S+) \1$", text, re.MULTILINE)}


@pytest.mark.parametrize(
    ("stages", "command"),
    [(("build", "controlplane"), "build"), (("build", "controlplane", "devcluster"), "up")],
    ids=["controlplane", "devcluster"],
)
def test_a_stage_has_what_its_command_imports(tmp_path: Path, stages: tuple[str, ...], command: str) -> None:
    """What was typed is read, and the cache looked at: far enough to import what the command needs from here."""
    folders = copied(*stages)
    assert "devcluster" in folders
    for name in folders:
        (tmp_path / name).symlink_to(ROOT / name)
    # A cache that cannot be made ends `build`, and sizes that are none end `up`, each after its imports.
    (tmp_path / "file").touch()
    arguments = ["--disks", "none"] if command == "up" else []
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(ROOT), command, *arguments],
        cwd=tmp_path,
        env={"PATH": "", "DEVCLUSTER_CACHE": str(tmp_path / "file")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.startswith("devcluster: cannot build into" if command == "build" else "devcluster: --disks")

"""Each stage of the image contains what its command imports."""

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
# Only the staged folders count, although the virtual environment of the tests has the repository installed.
PROGRAM = """
import runpy, sys
staged, repository, *arguments = sys.argv[1:]
sys.path[:] = [staged, *(path for path in sys.path if path not in ("", repository))]
sys.argv = ["devcluster", *arguments]
runpy.run_module("devcluster", run_name="__main__", alter_sys=True)
"""


def copied_folders(*stages: str) -> set[str]:
    """The folders of the repository that some stages copy to the same name."""
    text = "".join(STAGES[stage] for stage in stages)
    return {match[1] for match in re.finditer(r"^COPY (\S+) \1$", text, re.MULTILINE)}


@pytest.mark.parametrize(
    ("stages", "command"),
    [(("build", "controlplane"), "build"), (("build", "controlplane", "devcluster"), "up")],
    ids=["controlplane", "devcluster"],
)
def test_a_stage_contains_what_its_command_imports(tmp_path: Path, stages: tuple[str, ...], command: str) -> None:
    folders = copied_folders(*stages)
    assert "devcluster" in folders
    for name in folders:
        (tmp_path / name).symlink_to(ROOT / name)
    # An impossible cache folder ends `build`, and wrong sizes end `up`, each after its imports.
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

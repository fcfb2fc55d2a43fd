"""The version of Kubernetes is a parameter; its go.mod follows from Kubernetes' own."""

import pytest

from devcluster import build, kubernetes_version
from devcluster.errors import BuildError, ConfigError
from tests.devcluster.go_stand_in import KUBERNETES_GO_MOD


def test_the_pinned_version_is_that_of_the_committed_module() -> None:
    version = build.pinned_version()
    text = (build.MODULE / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{version}\n" in text
    assert f"k8s.io/api => k8s.io/api v0.{version.removeprefix('1.')}\n" in text


@pytest.mark.parametrize(
    ("wanted", "environment", "version"),
    [
        pytest.param(None, {}, "1.36.3", id="the default"),
        pytest.param(None, {kubernetes_version.VARIABLE: ""}, "1.36.3", id="an empty variable"),
        pytest.param(None, {kubernetes_version.VARIABLE: "1.35.4"}, "1.35.4", id="the variable"),
        pytest.param("v1.37.2", {kubernetes_version.VARIABLE: "1.35.4"}, "1.37.2", id="the option"),
    ],
)
def test_the_version_is_chosen(wanted: str | None, environment: dict[str, str], version: str) -> None:
    assert kubernetes_version.choose(wanted, "1.36.3", environment) == version


@pytest.mark.parametrize("text", ["1.35", "latest", "1.35.4-rc.0", "2.0.0", "../1.35.4"])
def test_only_releases_are_versions(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no release of Kubernetes; write one such as 1\.36\.3"):
        kubernetes_version.choose(text, "1.36.3", {})


def test_the_module_takes_go_etcd_and_the_staging_modules_from_kubernetes() -> None:
    lines = kubernetes_version.go_mod("1.35.4", KUBERNETES_GO_MOD).splitlines()
    assert "go 1.25.0" in lines
    assert "\tgo.etcd.io/etcd/server/v3 v3.6.5" in lines
    assert "\tk8s.io/kubernetes v1.35.4" in lines
    assert [line for line in lines if "=>" in line] == [
        "\tk8s.io/api => k8s.io/api v0.35.4",
        "\tk8s.io/kubectl => k8s.io/kubectl v0.35.4",
    ]


def test_a_kubernetes_without_etcd_is_refused() -> None:
    with pytest.raises(BuildError, match=r"does not require go\.etcd\.io/etcd/server/v3"):
        kubernetes_version.go_mod("1.35.4", "module k8s.io/kubernetes\n\ngo 1.25.0\n")

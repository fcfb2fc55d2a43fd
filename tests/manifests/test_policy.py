"""manifests/policy: services may be listed and watched, and an administrator's policy file is mounted; nothing else changes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Final

import pytest
import typer

from app.cli.main import cli
from scheduler_core.generic.extender_policy import SERVICES
from tests.manifests.kustomize import BASES, POLICY, ROLE, Built, build, shown
from tests.manifests.load import CLUSTER_PERMISSIONS, MANIFESTS, NAME, NAMESPACE, Permission, only, permissions

ACCESS: Final = MANIFESTS / "policy/access"


def test_services_may_be_listed_and_watched_and_nothing_else() -> None:
    """A widened permission fails here, and has to be argued for."""
    granted: list[Permission] = permissions(only("ClusterRole", ACCESS))
    assert sorted(granted) == [("list", "", "services", ""), ("watch", "", "services", "")]


def test_with_it_everything_that_rules_of_policies_read_may_be_watched() -> None:
    """And nothing is granted that the extender may do anyway."""
    anyway = {(verb, kind) for verb, group, kind, _ in CLUSTER_PERMISSIONS if not group}
    needed = {(verb, kind) for verb in ("list", "watch") for kind in SERVICES}
    assert {(verb, kind) for verb, _, kind, _ in permissions(only("ClusterRole", ACCESS))} == needed - anyway


def test_the_role_is_bound_to_the_extenders_service_account_only() -> None:
    """It has a name of its own: the extender's own ClusterRole stays as it is."""
    bound = only("ClusterRoleBinding", ACCESS)
    assert only("ClusterRole", ACCESS)["metadata"]["name"] == bound["metadata"]["name"] == ROLE
    assert bound["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE}
    assert bound["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}]


@pytest.fixture(scope="module", params=BASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built]:
    """The same manifests without and with a policy."""
    plain = f"resources: [../manifests/{request.param}]\n"
    without = build(tmp_path_factory.mktemp("without"), plain)
    return without, build(tmp_path_factory.mktemp("with"), shown(request.param))


@pytest.mark.e2e
def test_only_the_permission_and_the_policy_are_added(pair: tuple[Built, Built]) -> None:
    """Every object but the Deployment is as before."""
    without, built = pair
    added = {("ClusterRole", ROLE), ("ClusterRoleBinding", ROLE), ("ConfigMap", ROLE)}
    assert built.keys() - without.keys() == added
    changed = {key for key, entry in without.items() if built[key] != entry}
    assert changed == {("Deployment", NAME)}
    labels = without["Deployment", NAME]["metadata"]["labels"]
    assert [built[key]["metadata"]["labels"] for key in sorted(added)] == [labels] * 3


@pytest.mark.e2e
def test_the_deployment_serves_the_mounted_file(pair: tuple[Built, Built]) -> None:
    """One argument more, which is the path of the administrator's file; the mount is read-only, and nothing else differs."""
    without, built = copy.deepcopy(pair)
    before, now = (found["Deployment", NAME]["spec"]["template"]["spec"] for found in (without, built))
    (container,), (plain,) = now["containers"], before["containers"]
    option, _, path = container["args"].pop().partition("=")
    command = typer.main.get_command(cli).get_command(None, "serve")  # type: ignore[attr-defined]
    assert option in {name for parameter in command.params for name in parameter.opts}
    (mount,), (volume,) = container.pop("volumeMounts"), now.pop("volumes")
    assert mount == {"name": volume["name"], "mountPath": str(Path(path).parent), "readOnly": True}
    config = built["ConfigMap", ROLE]
    assert volume["configMap"] == {"name": config["metadata"]["name"]}
    assert config["metadata"]["namespace"] == NAMESPACE
    assert config["data"] == {Path(path).name: POLICY.read_text()}
    assert now == before
    assert container == plain
    assert without["Deployment", NAME]["spec"] == built["Deployment", NAME]["spec"]


@pytest.mark.e2e
def test_another_policy_is_rolled_out(tmp_path: Path) -> None:
    """The ConfigMap's name follows its content, and the Deployment names it."""
    kustomization = shown("base")
    other = kustomization.replace("files: [policy.json]", "literals: ['policy.json={}']")
    assert other != kustomization
    names = {
        build(tmp_path / folder, text)["Deployment", NAME]["spec"]["template"]["spec"]["volumes"][0]["configMap"][
            "name"
        ]
        for folder, text in (("one", kustomization), ("other", other))
    }
    assert len(names) == 2
    assert all(name.startswith(f"{ROLE}-") for name in names)

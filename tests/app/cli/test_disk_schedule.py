"""The command and its manifests have the same flags."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from app.cli.commands import load_command
from scheduler_core.model.disk_schedule import FINALIZER
from tests.manifests.load import MANIFESTS, ROOT, documents, objects, permissions

FOLDER = MANIFESTS / "disk-schedule"
(POD,) = (entry["spec"]["template"]["spec"] for entry in objects(FOLDER) if entry["kind"] == "Deployment")
(CONTAINER,) = POD["containers"]


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "mirror"], ids=["allocate", "mirror"])
def test_both_folders_have_account_role_policy_and_pods(folder: Path) -> None:
    """All have one name. The definition is apart: to apply it could replace Longhorn's own."""
    by_kind: dict[str, Any] = {entry["kind"]: entry for entry in objects(folder)}
    assert {entry["metadata"]["name"] for entry in by_kind.values()} == {"longhorn-disk-schedule"}
    access = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}
    assert by_kind.keys() == {*access, "Deployment", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def test_the_mirror_may_only_write_disk_schedules_and_its_lease() -> None:
    role = documents(FOLDER / "mirror/role.yaml")[0]
    resources = {resource for verb, _, resource, _ in permissions(role) if verb not in ("get", "list", "watch")}
    assert resources == {"diskschedules", "diskschedules/status", "leases"}
    assert set(permissions(role)) < set(permissions(documents(FOLDER / "role.yaml")[0]))


def test_the_program_accepts_the_command_line_of_the_manifest() -> None:
    command = load_command("disk-schedule")
    flags = {option for parameter in command.params for option in parameter.opts}
    verb, *arguments = CONTAINER["args"]
    assert (CONTAINER["command"], verb) == (["longhorn-extender"], "disk-schedule")
    assert {argument for argument in arguments if argument.startswith("--")} <= flags
    assert "--mirror" in flags
    assert {entry["name"] for entry in CONTAINER["env"]} <= {parameter.envvar for parameter in command.params}
    assert {port["containerPort"] for port in CONTAINER["ports"]} == {9505}


def test_the_images_tag_is_the_projects_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (kustomization,) = documents(FOLDER / "parts/kustomization.yaml")
    assert kustomization["images"] == [{"name": CONTAINER["image"], "newTag": version}]


def test_the_flags_are_documented() -> None:
    text = (ROOT / "docs/disk-schedule.md").read_text()
    command = load_command("disk-schedule")
    named = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    missing = {option for option in named - {"--help", "--log-format", "--log-level"} if f"`{option}`" not in text}
    assert missing == set()
    assert FINALIZER in text

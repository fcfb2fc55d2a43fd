"""The admission policies of the generic scheduler and of the DiskSchedule controllers."""

from pathlib import Path

import pytest

from app.disk_schedule.lifecycle import LEASE as DISK_SCHEDULE
from app.scheduler.lifecycle import LEASE as GENERIC
from tests.manifests.load import MANIFESTS, objects, only, permissions

GENERIC_ACCESS = MANIFESTS / "generic-scheduler/access"
OPERATIONS = {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE"}
# Events, which anyone may create, and the controllers' own kind.
UNCHECKED = {"events", "diskschedules", "diskschedules/status"}


@pytest.mark.parametrize(("name", "folder"), [(GENERIC, GENERIC_ACCESS), (DISK_SCHEDULE, MANIFESTS / "disk-schedule")])
def test_the_policy_checks_everything_that_the_roles_let_the_account_write(name: str, folder: Path) -> None:
    """A further write permission needs a rule of its own."""
    roles = [entry for entry in objects(folder) if entry["kind"] in {"Role", "ClusterRole"}]
    written = {
        (OPERATIONS[verb], group, resource)
        for role in roles
        for verb, group, resource, _ in permissions(role)
        if verb in OPERATIONS and resource not in UNCHECKED
    }
    spec = only("ValidatingAdmissionPolicy", folder)["spec"]
    checked = {
        (operation, group, resource)
        for rule in spec["matchConstraints"]["resourceRules"]
        for operation in rule["operations"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert checked == written
    assert spec["failurePolicy"] == "Fail"
    (condition,) = spec["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username.matches('^system:serviceaccount:[^:]+:{name}$')"
    binding = only("ValidatingAdmissionPolicyBinding", folder)["spec"]
    assert binding == {"policyName": name, "validationActions": ["Deny"]}

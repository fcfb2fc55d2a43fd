"""A cluster whose longhorn-manager owns the DiskSchedules: the controllers keep away, and the extender reads them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.kube.resources import CRDS, DISK_SCHEDULES, LONGHORN_NODES
from devcluster.dev_cluster import DevCluster
from devcluster.stack import FAST_LEASE as FAST, ROOT
from tests import builders
from tests.e2e.disk_schedule import CRD, LONGHORN, MANIFESTS, MIRROR, NO_RESERVE, Longhorn, install
from tests.e2e.rig import run_extender
from tests.worlds.disk_schedules import disk_schedule, owned_by_longhorn

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

THEIRS = ROOT / "tests/e2e/longhorns_diskschedules.yaml"
REFUSAL = (
    "longhorn-manager owns the DiskSchedules here (the CustomResourceDefinition diskschedules.longhorn.io is its own) "
    "and answers them itself"
)


@pytest.fixture(scope="module")
def longhorn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Longhorn]:
    """A cluster of its own with this project's definition, in Longhorn's namespace."""
    with DevCluster(tmp_path_factory.mktemp("longhorns-disk-schedules")) as cluster:
        namespace = Longhorn(cluster, install(cluster), LONGHORN)
        namespace.create(NO_RESERVE)
        namespace.add_nodes({"n1": 40}, maximum=100)
        yield namespace
        namespace.stop()


def definition(cluster: DevCluster) -> dict[str, Any]:
    spec: dict[str, Any] = cluster.api.get(CRDS.path(name=DISK_SCHEDULES.label))["spec"]
    return spec


def test_longhorns_definition_is_neither_written_to_nor_replaced(longhorn: Longhorn) -> None:
    """A mirror that runs when Longhorn brings its own stops writing; none starts any more; no manifest replaces it."""
    cluster = longhorn.cluster
    cluster.kubectl("replace", "-k", str(CRD))
    mirror = longhorn.start("mirror", *FAST, "--mirror")
    longhorn.wait_working(mirror)
    longhorn.until("the disk is mirrored", lambda: longhorn.status("n1-disk-1") != {})
    cluster.kubectl("replace", "-f", str(THEIRS))
    longhorn.until("it says so", lambda: REFUSAL in longhorn.get_path(mirror, "/readyz")[1])
    mirror.stop()

    for arguments in ((), ("--mirror",)):
        assert longhorn.refusal_to_start(*arguments) == (2, f"longhorn-extender: {REFUSAL}\n")

    before = definition(cluster)
    assert "AlreadyExists" in cluster.kubectl("create", "-k", str(CRD), check=False)
    for folder in (MANIFESTS, MIRROR):
        cluster.kubectl("apply", "-k", str(folder))
    assert definition(cluster) == before


def test_the_extender_counts_what_longhorn_granted_and_what_was_requested(longhorn: Longhorn) -> None:
    """Of 200 % of 100 Gi, 100 are granted and 50 have no answer; that 40 are available limits nothing."""
    cluster = longhorn.cluster
    cluster.kubectl("replace", "-f", str(THEIRS))
    longhorn.create(builders.setting("storage-over-provisioning-percentage", "200"))
    longhorn.add_nodes({"n2": 40}, maximum=100)
    answers = {"a": ("scheduled", 100.0), "b": ("unknown", 0.0)}
    raw = owned_by_longhorn(disk_schedule("n2-disk-1", node="n2", replicas={"a": 100, "b": 50}, answers=answers))
    raw["metadata"]["ownerReferences"][0]["uid"] = longhorn.get(LONGHORN_NODES, "n2")["metadata"]["uid"]
    cluster.api.create(DISK_SCHEDULES.path(LONGHORN), raw)
    cluster.api.patch(DISK_SCHEDULES.path(LONGHORN, "n2-disk-1", "status"), {"status": raw["status"]})
    claims = [builders.claim(f"data-{size}", size) for size in (50, 51)]
    items = [builders.storage_class(), builders.kube_node("n2"), *claims]
    cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def answer(size: int) -> Any:
        options = ("--claim", f"default/data-{size}", "--all-nodes", "-o", "json")
        return json.loads(run_extender(cluster, "explain", *options, quiet=False))["nodes"]["n2"]

    assert answer(50)["fits"]
    assert answer(51)["detail"] == "data-51 needs 51Gi; disk disk-1 has 50Gi left to schedule"

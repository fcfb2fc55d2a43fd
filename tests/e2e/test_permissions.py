"""The extender's roles grant exactly what it uses."""

import pytest

from app.kube.client import ApiError
from app.kube.resources import CLAIMS, ENDPOINT_SLICES, PERSISTENT_VOLUMES
from devcluster.programs import NAMESPACE, SERVICE
from devcluster.stack import ROOT
from tests.control_plane import ControlPlane
from tests.e2e.objects import asking_pod, claim_of, name_of, retained_volume, statefulset
from tests.e2e.permissions import account_calls, granted_calls
from tests.e2e.rig import PROPOSAL, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{SERVICE}"
ROLES = [ROOT / "manifests/access/role.yaml", ROOT / "manifests/access/clusterrole.yaml"]
SLICE = ENDPOINT_SLICES.path(NAMESPACE, SERVICE)


def ask_about(rig: Rig, claim_name: str) -> None:
    """Sends /filter for a pod that does not exist and mounts a claim."""
    pod = asking_pod(f"mounts-{claim_name}", [claim_name], {})
    pod["metadata"]["uid"] = f"uid-{claim_name}"
    status, answer = rig.request(rig.leader(), "/filter", {"Pod": pod, "NodeNames": ["one"]})
    assert status == 200, answer


def publish_a_slice_of_another_address_type(rig: Rig) -> None:
    """Its type cannot be changed, so that the leader deletes it."""
    rig.until("the Service has an endpoint", lambda: rig.cluster.api.get(SLICE).get("endpoints"), 20)
    labels = {"kubernetes.io/service-name": SERVICE}
    metadata = {"name": SERVICE, "namespace": NAMESPACE, "labels": labels}
    wrong = {"metadata": metadata, "addressType": "FQDN", "endpoints": [{"addresses": ["elsewhere.example"]}]}

    def is_published() -> bool:
        try:
            rig.cluster.api.delete(SLICE)
            rig.cluster.api.create(ENDPOINT_SLICES.path(NAMESPACE), wrong)
        except ApiError as error:
            # The leader creates its own again, and may be quicker.
            if not (error.conflict or error.not_found):
                raise
            return False
        return True

    rig.until("it is published", is_published, 30)

    def is_replaced() -> bool:
        # Between deletion and creation there is none.
        slices = [each for each in rig.items(ENDPOINT_SLICES.path(NAMESPACE)) if name_of(each) == SERVICE]
        return bool(slices) and slices[0]["addressType"] != "FQDN"

    rig.until("it is replaced", is_replaced, 30)


@pytest.mark.smoke
def test_the_roles_grant_exactly_the_verbs_that_are_used(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The audit log of a life with every kind of event has exactly these calls."""
    folder = tmp_path_factory.mktemp("permissions")
    # The first candidate creates the Lease.
    with Rig(folder, control_plane, candidates=2, config=PROPOSAL, free_lease=False) as rig:
        rig.cluster.apply(ROOT / "manifests/crd")
        rig.cluster.apply(ROOT / "tests/e2e/volume_sources.yaml")
        rig.use_simulator({"storage_capacity": False, "capacity_period": "none"})
        rig.add_nodes("one", {"one": ["100Gi"]})
        rig.create(statefulset("first", group="one", replicas=1))
        rig.until("the first pod runs", lambda: rig.ready("first", 1))
        rig.create(statefulset("second", group="one", replicas=1))
        rig.until("the second one is refused", lambda: rig.refused_pods("second"))
        rig.remove("first")
        rig.until("the second pod runs after a nudge", lambda: rig.ready("second", 1))

        rig.create(
            claim_of("of-no-class", "1Gi", "missing"),
            claim_of("of-no-volume", "1Gi", "static", volumeName="missing"),
            claim_of("of-no-replica", "1Gi", "static", volumeName="kept"),
            # Reserved for a claim, without its Longhorn volume.
            retained_volume("kept", "1Gi", "static", claimRef={"namespace": "default", "name": "of-no-replica"}),
        )
        for name in ("missing", "of-no-class", "of-no-volume", "of-no-replica"):
            ask_about(rig, name)
        publish_a_slice_of_another_address_type(rig)
        leader = rig.leader()
        rig.cluster.processes[leader].stop()
        rig.until("its successor answers", lambda: rig.leader() not in {"", leader})
        rig.delete_all(CLAIMS, "app notin (second)")
        rig.cluster.api.delete(PERSISTENT_VOLUMES.path(name="kept"))

        granted = granted_calls(ROLES)
        # A watch is logged when the API server has noticed its end.
        for name in rig.candidates:
            rig.cluster.processes[name].stop()

        def calls() -> tuple[set[tuple[str, str, str]], list[str]]:
            return account_calls(rig.cluster, ACCOUNT, [NAMESPACE, "default"])

        rig.until("the log has the watches", lambda: granted <= calls()[0])
        assert calls() == (granted, [])

"""What the extender says is true, and stops being said when the one fact behind it changes.

Longhorn's controllers stop before objects are spoilt, so that nothing writes them but the tests. The statement is that of `/explain` and of
the pod's event. It is verified by the raw objects, and by the real kube-scheduler: once the fact has changed, it chooses the node.
"""

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from app.kube.resources import (
    CLAIMS,
    LONGHORN_ENGINE_IMAGES,
    LONGHORN_INSTANCE_MANAGERS,
    LONGHORN_SETTINGS,
    NODES,
    PODS,
    STORAGE_CLASSES,
)
from devcluster.http_check import http_request
from devcluster.polling import wait_until
from devcluster.programs import NAMESPACE, SIMULATOR
from devcluster.stack import Stack, StackOptions
from scheduler_core.model.verdict import Reason
from tests.control_plane import ControlPlane
from tests.e2e.objects import HOSTNAME, asking_pod, claim_of, name_of, node_of, scheduling_message, selected_node
from tests.e2e.rig import RECOMMENDED_MANAGED, run_extender
from tests.e2e.situations import BAD_SETTING, ELSEWHERE, SITUATIONS, Facts, Situation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
MOST_VOLUMES = 4094
# By claim: the plugin and words of `explain`, and those of kube-scheduler.
CLAIM_REFUSALS = {
    "unbound": ("VolumeBinding", "it waits until the claim is provisioned", "unbound immediate PersistentVolumeClaims"),
    "classless": ("VolumeBinding", "StorageClass gone does not exist", "unbound immediate PersistentVolumeClaims"),
    "deleting": ("VolumeBinding", '"deleting" is being deleted', "is being deleted"),
    "single": ("VolumeRestrictions", "ReadWriteOncePod", "ReadWriteOncePod"),
}


@pytest.fixture(scope="module")
def stack(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A cluster in which every situation has been made, with its pod."""
    # Volumes of too few nodes are refused, and kube-scheduler asks about every node.
    simulator = {"storage_capacity": False, "settings": {"allow-volume-creation-with-degraded-availability": "false"}}
    options = StackOptions(
        scheduler_config=RECOMMENDED_MANAGED, create_free_lease=True, audit=False, simulator=simulator
    )
    with (
        control_plane.borrow() as cluster,
        Stack(tmp_path_factory.mktemp("statements"), options, running=cluster) as running,
    ):
        add_nodes(running)
        cluster.processes[SIMULATOR].stop()
        every = [*SITUATIONS, BAD_SETTING]
        for situation in every:
            for resource, namespace, body in situation.objects(cluster.api):
                cluster.api.create(resource.path(namespace), body)
        for situation in SITUATIONS:
            situation.spoil(Facts(cluster.api, situation.name))
        for situation in SITUATIONS:
            until_said(running, situation)
        for situation in SITUATIONS:
            # Pods that the same setting mends would be mended together.
            if not situation.remedy:
                cluster.api.create(PODS.path("default"), situation.pod())
        yield running


def add_nodes(stack: Stack) -> None:
    """Adds the nodes of every situation, and one with room elsewhere."""
    disks: dict[str, list[Any]] = {ELSEWHERE: ["900Gi"]}
    for situation in (*SITUATIONS, BAD_SETTING):
        disks |= {name: [dict(situation.disk)] for name in situation.nodes}
    stack.add_nodes(disks)
    wait_until("engines on every node", lambda: nodes_with_engines(stack) >= disks.keys())
    for situation in SITUATIONS:
        for name in situation.nodes if situation.twin else ():
            stack.cluster.api.patch(NODES.path(name=name), {"metadata": {"labels": {"group": situation.name}}})


def nodes_with_engines(stack: Stack) -> set[str]:
    """The nodes with a running instance manager and every engine image."""
    api = stack.cluster.api
    managers = api.get(LONGHORN_INSTANCE_MANAGERS.path(NAMESPACE))["items"]
    nodes = {raw["spec"]["nodeID"] for raw in managers if (raw.get("status") or {}).get("currentState") == "running"}
    for image in api.get(LONGHORN_ENGINE_IMAGES.path(NAMESPACE))["items"]:
        nodes &= {name for name, deployed in image["status"]["nodeDeploymentMap"].items() if deployed}
    return nodes


def said(stack: Stack, situation: Situation) -> str:
    return explained(stack, situation.pod(), *situation.nodes)


def until_said(stack: Stack, situation: Situation) -> None:
    """Waits until `/explain` says the situation's reason."""
    text = situation.reason.text
    wait_until(
        f"{situation.name} to be said",
        lambda: said(stack, situation) == text,
        20,
        explain=lambda: said(stack, situation),
    )


def explained(stack: Stack, pod: Any, *nodes: str) -> str:
    (leader,) = stack.answering()
    code, answer = http_request(f"{stack.url(leader)}/explain", {"pod": pod, "nodenames": list(nodes)})
    return str(answer["nodes"][nodes[0]]["reason"]) if "nodes" in answer else f"{code}: {answer}"


def event_of(stack: Stack, pod: str) -> str:
    """Why kube-scheduler has found no node for a pod, "" if it has said nothing."""
    return scheduling_message(stack.cluster.api.get(PODS.path("default", pod)))


def chosen_node(stack: Stack, pod: str) -> str:
    """The node that kube-scheduler has chosen: the pod's, or that of a claim that is not provisioned yet."""
    api = stack.cluster.api
    raw = api.get(PODS.path("default", pod))
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in raw["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    chosen = {selected_node(api.get(CLAIMS.path("default", claim))) for claim in claims}
    return node_of(raw) or "".join(chosen)


def mend(stack: Stack, situation: Situation) -> None:
    """Changes the one fact, by the printed commands where a remedy says so."""
    if not situation.remedy:
        situation.mend(Facts(stack.cluster.api, situation.name))
        return
    remedies = json.loads(run_extender(stack.cluster, "remedies", situation.name, "-o", "json", codes=[1]))["remedies"]
    (step,) = next(each["steps"] for each in remedies if each["kind"] == situation.remedy)
    for line in step["commands"]:
        stack.cluster.kubectl(*shlex.split(line)[1:])


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_a_reason_is_true_and_goes_with_its_fact(stack: Stack, situation: Situation) -> None:
    """kube-scheduler repeats it in the pod's event, and chooses the node as soon as the fact has changed."""
    pod = situation.name
    facts = Facts(stack.cluster.api, pod)
    node = situation.nodes[-1]
    if situation.remedy:
        facts.api.create(PODS.path("default"), situation.pod())
    if not situation.reason.fits and not situation.twin:
        text = situation.reason.text
        wait_until("the refusal", lambda: text in event_of(stack, pod), 20, explain=lambda: event_of(stack, pod))
    assert situation.is_true(facts)
    before = settings(stack)
    mend(stack, situation)
    try:
        wait_until("the node", lambda: chosen_node(stack, pod) == node, 20, explain=lambda: event_of(stack, pod))
    finally:
        for name, value in settings(stack).items():
            if before.get(name) != value:
                stack.cluster.api.patch(LONGHORN_SETTINGS.path(NAMESPACE, name), {"value": before.get(name, "false")})


def settings(stack: Stack) -> dict[str, str]:
    items = stack.cluster.api.get(LONGHORN_SETTINGS.path(NAMESPACE))["items"]
    return {name_of(raw): raw["value"] for raw in items}


def test_kube_scheduler_refuses_the_claims_that_explain_names(stack: Stack) -> None:
    """Before it looks at any node, and in its own words; two of them are mended."""
    api = stack.cluster.api
    classes = dict.fromkeys(CLAIM_REFUSALS, "room") | {"unbound": "longhorn", "classless": "gone"}
    claims = {name: claim_of(name, "1Gi", each, {"situation": "claims"}) for name, each in classes.items()}
    claims["deleting"]["metadata"]["finalizers"] = ["example.com/busy"]
    claims["single"]["spec"]["accessModes"] = ["ReadWriteOncePod"]
    for claim in claims.values():
        api.create(CLAIMS.path("default"), claim)
    api.delete(CLAIMS.path("default", "deleting"))
    user = asking_pod("user", ["single"], {})
    user["spec"]["nodeName"] = ELSEWHERE
    api.create(PODS.path("default"), user)
    for name in claims:
        api.create(PODS.path("default"), asking_pod(name, [name], {HOSTNAME: ELSEWHERE}))
    for name in CLAIM_REFUSALS:
        assert_claim_is_refused(stack, name)
    storage_class = api.get(STORAGE_CLASSES.path(name="room"))
    api.create(STORAGE_CLASSES.path(), {**storage_class, "metadata": {"name": "gone"}})
    api.delete(PODS.path("default", "user"), {"gracePeriodSeconds": 0})
    wait_until("both nodes", lambda: {chosen_node(stack, name) for name in ("classless", "single")} == {ELSEWHERE})


def assert_claim_is_refused(stack: Stack, name: str) -> None:
    """Asserts that kube-scheduler and `explain` refuse a pod for its claim."""
    plugin, text, words = CLAIM_REFUSALS[name]
    wait_until(
        f"{name} to be refused", lambda: words in event_of(stack, name), 20, explain=lambda: event_of(stack, name)
    )
    explained = run_extender(stack.cluster, "explain", name, "-n", "default", "-o", "json", codes=[1])
    refusal = json.loads(explained)["nodes"][ELSEWHERE]["kubeScheduler"]
    assert (refusal["plugin"], text in str(refusal)) == (plugin, True), refusal


def test_a_pod_with_more_volumes_than_a_node_can_attach_is_refused(stack: Stack) -> None:
    claims = [f"claim-{number}" for number in range(MOST_VOLUMES + 1)]
    text = Reason.TOO_MANY_VOLUMES.text
    assert text in explained(stack, asking_pod("many", claims, {}), ELSEWHERE)
    assert text not in explained(stack, asking_pod("many", claims[1:], {}), ELSEWHERE)


def test_a_setting_that_cannot_be_read_refuses_every_node(stack: Stack) -> None:
    facts = Facts(stack.cluster.api, BAD_SETTING.name)
    BAD_SETTING.spoil(facts)
    try:
        wait_until("it to be said", lambda: said(stack, BAD_SETTING) == BAD_SETTING.reason.text)
        facts.api.create(PODS.path("default"), BAD_SETTING.pod())
        wait_until("the refusal", lambda: BAD_SETTING.reason.text in event_of(stack, BAD_SETTING.name))
        assert BAD_SETTING.is_true(facts)
    finally:
        BAD_SETTING.mend(facts)
    wait_until("the node", lambda: chosen_node(stack, BAD_SETTING.name) == BAD_SETTING.name)

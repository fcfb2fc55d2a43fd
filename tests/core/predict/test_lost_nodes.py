"""Replicas whose Kubernetes node is gone, before Longhorn's own objects say so."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.decide.decision import FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.predict.cluster_changes import lose_nodes
from scheduler_core.predict.prediction import Certainty
from tests import builders as make
from tests.builders import Object
from tests.worlds.predicted_clusters import node, owned_pod, prediction, running, situation

CASE = Path(__file__).parents[2] / "golden/real/lose-prediction.json"
LOST = "g1-4"
NODES = [f"g1-{number}" for number in range(1, 6)]


def recorded() -> dict[str, Any]:
    """What `what-if --lose g1-4` predicted in a cluster with Longhorn's real control code."""
    answer: dict[str, Any] = json.loads(CASE.read_text())
    return answer


def before_longhorn_notices() -> list[Object]:
    """The cluster of the case. Kubernetes' node is gone and its pods are created again; Longhorn's objects are as before."""
    objects = [each for name in NODES for each in node(name, 400) if name != LOST or each["apiVersion"] != "v1"]
    moved = [entry["pod"] for entry in recorded()["pods"]]
    for volume in recorded()["volumes"]:
        if volume["pods"][0] not in moved:
            continue
        name = volume["pods"][0].removeprefix("default/")
        others = [NODES[0]] if volume["leastHealthy"] else []
        *_, claim, persistent_volume, attached = running(name, LOST, 40, replicas=[LOST, *others])[:4]
        replicas = [make.replica(f"{name}-{place}", f"vol-data-{name}", place, size=40) for place in (LOST, *others)]
        objects += [owned_pod(f"data-{name}", name=name), claim, persistent_volume, attached, *replicas]
    return objects


def offered_nodes(objects: list[Object], name: str) -> list[str]:
    state = make.state(make.storage_class(), *objects)
    pod = state.view.snapshot.pods["default", name]
    return filter_nodes(pod, sorted(state.view.snapshot.nodes), state, FilterOptions()).fitting_nodes


@pytest.mark.parametrize("entry", recorded()["pods"], ids=lambda entry: entry["pod"])
def test_a_pod_is_decided_as_predicted_before_longhorn_notices_the_loss(entry: dict[str, Any]) -> None:
    nodes = offered_nodes(before_longhorn_notices(), entry["pod"].removeprefix("default/"))
    assert bool(nodes) is (entry["outcome"] != "never")


def test_the_prediction_of_a_loss_is_as_recorded() -> None:
    """The pods whose data is lost get no node, and do not run."""
    pods = [
        running(name, LOST, 40, replicas=[LOST, *others])
        for name, others in (("one-3", []), ("two-2", []), ("three-1", [NODES[0]]))
    ]
    result = prediction(situation(*(node(name, 400) for name in NODES), *pods), partial(lose_nodes, nodes=(LOST,)))
    outcomes = {outcome.pod.partition("/")[2]: outcome.outcome for outcome in result.pods}
    assert outcomes == {"one-3": Certainty.NEVER, "two-2": Certainty.NEVER, "three-1": Certainty.ALWAYS}

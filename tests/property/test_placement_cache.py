"""Answers about whole pods that are kept with a state are those of a state without any."""

from random import Random
from typing import Any

from hypothesis import given, strategies as st

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.builders import Object

EXACT = FilterOptions(packing=Packing.EXACT)
NODES = ("n0", "n1", "n2")


def random_objects(random: Random, pods: int) -> list[Object]:
    """Three nodes, and pods with a few claims of a few sizes and classes, so that many are alike."""
    objects = [make.setting("allow-volume-creation-with-degraded-availability", random.choice(["true", "false"]))]
    for name in NODES:
        disks = {f"d{index}": make.disk(random.choice([30, 60, 90])) for index in range(random.randint(1, 2))}
        objects.append(make.longhorn_node(name, disks, zone=random.choice(["", "east"])))
    zones = random.choice(["ignored", "disabled"])
    for name, locality in (("local", "best-effort"), ("remote", "disabled")):
        parameters: dict[str, Any] = {"dataLocality": locality, "replicaZoneSoftAntiAffinity": zones}
        objects.append(make.storage_class(name, numberOfReplicas=random.choice(["1", "2"]), **parameters))
    for pod in range(pods):
        claims = [f"c{pod}-{index}" for index in range(random.randint(1, 3))]
        random.shuffle(claims)
        for claim in claims:
            size = random.choice([30, 60])
            kind = random.choice(["local", "remote", "kept"])
            if kind == "kept":
                objects += make.bound(claim, size, numberOfReplicas=2)
                objects += [
                    make.replica(f"{claim}-{index}", f"vol-{claim}", node, disk="d0", size=size)
                    for index, node in enumerate((random.choice(NODES), ""))
                ]
            else:
                objects.append(make.claim(claim, size, storage_class=kind))
        objects.append(make.pod(*claims, name=f"p{pod}", uid=f"uid-{pod}"))
    return objects


def decide(state: ClusterState, pod: int) -> list[Reason]:
    requested = state.view.snapshot.pods["default", f"p{pod}"]
    return list(filter_nodes(requested, NODES, state, EXACT).reasons)


@given(st.randoms(use_true_random=False))
def test_earlier_pods_change_no_answer(random: Random) -> None:
    pods = 5
    objects = random_objects(random, pods)
    shared = make.state(objects)
    for pod in range(pods):
        assert decide(shared, pod) == decide(make.state(objects), pod)

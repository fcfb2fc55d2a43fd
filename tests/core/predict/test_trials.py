"""Short cuts of the search for remedies, and when they are not taken.

That they change no result is compared with the plain search in `tests/property/test_remedies.py`.
"""

import pytest

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.predict.remedy import RemedyKind, Step
from scheduler_core.predict.trials import Trials
from scheduler_core.values import replace
from tests.builders import Object, claim, disk, flat, kube_node, longhorn_node, pod, setting, storage_class
from tests.worlds.predicted_clusters import OPTIONS
from tests.worlds.remedies import cluster_of, waiting

DECISIONS = 10
CLOSED_DISK = Step(RemedyKind.ALLOW_DISK, "a", "disk-1")
NODES = flat([kube_node("a"), longhorn_node("a", {"disk-1": disk(100, allow=False)})])
# No volume is created with fewer replicas than it is to have, so that one waits for a second node.
TWO_REPLICAS = [
    setting("allow-volume-creation-with-degraded-availability", "false"),
    storage_class("elsewhere", numberOfReplicas="2", dataLocality="disabled"),
]
# A pod that is bound to the node, and whose volume has no place there yet.
OTHER_POD = [pod("other", name="other", uid="uid-other", node="a"), claim("other", 10)]


def waiting_pod(storage_class_name: str = "longhorn", *, spread: bool = False) -> list[Object]:
    """A pod with one new volume; `longhorn` has one local replica."""
    raw = pod("data", name="db", uid="uid-db")
    if spread:
        constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
        raw["spec"]["topologySpreadConstraints"] = [constraint]
    return [claim("data", 40, storage_class=storage_class_name), raw]


def trials_of(*objects: Object | list[Object], options: FilterOptions = OPTIONS) -> Trials:
    """Trials whose first decision, without any step, is made."""
    cluster = cluster_of(flat(*objects))
    trials = Trials(waiting(cluster), cluster, options, DECISIONS)
    assert trials.decide(()).node == ""
    return trials


@pytest.mark.parametrize(
    ("objects", "options", "monotone"),
    [
        pytest.param([*TWO_REPLICAS, *waiting_pod("elsewhere")], OPTIONS, True, id="replicas may go elsewhere"),
        pytest.param(waiting_pod(), OPTIONS, False, id="nodes are decided about one by one"),
        pytest.param(
            [*TWO_REPLICAS, *waiting_pod("elsewhere"), *OTHER_POD], OPTIONS, False, id="another pod's volume waits"
        ),
        pytest.param([*TWO_REPLICAS, *waiting_pod("elsewhere", spread=True)], OPTIONS, False, id="topology spread"),
        pytest.param(
            [*TWO_REPLICAS, *waiting_pod("elsewhere")],
            replace(OPTIONS, packing=Packing.ORDER_SAFE),
            False,
            id="order-safe",
        ),
    ],
)
def test_all_steps_at_once_prove_something_only_where_no_step_hurts(
    objects: list[Object], options: FilterOptions, monotone: bool
) -> None:
    """Otherwise a pod may fit after one step and not after two."""
    assert trials_of(NODES, objects, options=options).monotone is monotone


@pytest.mark.parametrize(
    ("objects", "share"),
    [
        pytest.param(waiting_pod(), 1 / 7, id="local replica"),
        pytest.param([*TWO_REPLICAS, *waiting_pod("elsewhere")], 1, id="replicas may go elsewhere"),
        pytest.param([*waiting_pod(), *OTHER_POD], 1, id="another pod's volume waits there"),
        pytest.param(waiting_pod(spread=True), 1, id="topology spread"),
    ],
)
def test_only_the_changed_node_is_decided_about_where_no_other_can_change(objects: list[Object], share: float) -> None:
    trials = trials_of(NODES, objects)
    trials.decide((CLOSED_DISK,))
    assert trials.decisions_left == pytest.approx(DECISIONS - 1 - share)

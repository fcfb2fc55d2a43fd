"""Decisions about pods that compete with demand and offers, compared with trying every assignment."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import pytest
from hypothesis import example, given, strategies as st

from scheduler_core.decide.decision import Contenders, Decision, FilterOptions, Packing
from scheduler_core.decide.explain import explain_nodes
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import replace
from tests import builders as make
from tests.builders import GI, Object
from tests.examples import examples
from tests.property.test_packing import brute_force
from tests.worlds.offers import ledger_with_offers, with_offer

NODES = ("a", "b", "c")
EXACT = FilterOptions(packing=Packing.EXACT)
Layout = list[list[int]]
"""The disk sizes of each node."""
OtherPod = tuple[str, list[int], set[str]]
"""A pod's node ("" while it is not bound), the sizes of its volumes, and the nodes it is offered while it is not bound."""

SHARED = "s"
SHARED_SIZE = 6
volume_sizes = st.integers(1, 9)
disk_sizes = st.lists(st.integers(4, 20), min_size=1, max_size=2)
layouts = st.lists(disk_sizes, min_size=3, max_size=3)
nodes_or_none = st.sampled_from(("", "", *NODES))
node_sets = st.sets(st.sampled_from(NODES), min_size=1)
other_pods = st.lists(st.tuples(nodes_or_none, st.lists(volume_sizes, min_size=1, max_size=2), node_sets), max_size=4)
requests = st.lists(volume_sizes, min_size=1, max_size=2)


def _cluster(layout: Layout, others: Sequence[OtherPod], requested: Sequence[int]) -> list[Object]:
    objects: list[Object] = [make.storage_class("longhorn")]
    for name, sizes in zip(NODES, layout, strict=True):
        disks = {f"disk-{index}": make.disk(size) for index, size in enumerate(sizes, start=1)}
        objects.append(make.longhorn_node(name, disks))
    for number, (node, sizes, _) in enumerate(others):
        names = [f"o{number}-{index}" for index in range(len(sizes))]
        objects += [_claim_of_age(name, size, number) for name, size in zip(names, sizes, strict=True)]
        objects.append(make.pod(*names, name=f"o{number}", uid=f"uid-{number}", node=node))
    names = [f"p-{index}" for index in range(len(requested))]
    objects += [make.claim(name, size) for name, size in zip(names, requested, strict=True)]
    objects.append(make.pod(*names, name="p", uid="uid-p"))
    return objects


def _claim_of_age(name: str, size: int, second: int) -> Object:
    raw = make.claim(name, size)
    raw["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{second:02d}Z"
    return raw


def _ledger(state: ClusterState, others: Iterable[OtherPod]) -> Ledger:
    """Offers to the other pods that are not bound, in their order."""
    offers = [(f"o{number}", nodes) for number, (node, _, nodes) in enumerate(others) if not node]
    return ledger_with_offers(state.view, offers)


def _decide(
    state: ClusterState,
    contenders: Contenders,
    options: FilterOptions = EXACT,
    nodes: Sequence[str] = NODES,
    name: str = "p",
) -> Decision:
    pod = state.view.snapshot.pods["default", name]
    return filter_nodes(pod, nodes, state, options, contenders)


def _expected(
    layout: Layout,
    others: Sequence[OtherPod],
    requested: Sequence[int],
    sharing: Collection[int] = (),
    holding: Mapping[int, OtherPod] = {},
) -> list[bool]:
    """Whether the request packs on each node: demand counts by volume, an offer as a whole. A volume that does not fit on some node of its
    pod counts on every other node where it fits. `sharing` pods mount the requester's claim, too. `holding` pods have holds. They do not
    count elsewhere, but whatever the requester's priority, other volumes that do not fit together with them do.
    """
    cluster = _OtherVolumes(others, sharing, holding)
    everyone = _OtherVolumes([holding.get(number, pod) for number, pod in enumerate(others)], sharing, holding)
    held = tuple(f"o{number}-" for number in holding)
    roaming = {key for key in everyone.roaming(layout) if not key.startswith(held)}
    fits = []
    for name, free in zip(NODES, layout, strict=True):
        counted = cluster.fitting(name, free, SHARED)
        for key in sorted(roaming - {SHARED, *counted}, key=lambda key: (-cluster.sizes[key], key)):
            if brute_force([*map(cluster.sizes.__getitem__, counted), cluster.sizes[key]], free, None):
                counted.append(key)
        fits.append(brute_force([*map(cluster.sizes.__getitem__, counted), *requested], free, None))
    return fits


class _OtherVolumes:
    """The volumes of other pods, by the names of their claims; holds come last."""

    def __init__(self, others: Sequence[OtherPod], sharing: Collection[int], holding: Collection[int] = ()) -> None:
        self.sizes = {
            f"o{number}-{index}": size for number, pod in enumerate(others) for index, size in enumerate(pod[1])
        }
        self.sizes[SHARED] = SHARED_SIZE
        self._pods = [
            (
                node,
                [*([SHARED] if number in sharing else []), *(f"o{number}-{index}" for index in range(len(sizes)))],
                nodes,
            )
            for number, (node, sizes, nodes) in sorted(enumerate(others), key=lambda pod: pod[0] in holding)
        ]

    def _wanted(self, name: str) -> tuple[list[str], list[list[str]]]:
        """The volumes that are demanded on a node, oldest first, larger before smaller, and those of each offer, holds last."""
        users = [node for node, keys, _ in self._pods if node and SHARED in keys]
        demanded = [SHARED] if users and users[0] == name else []
        for node, keys, _ in self._pods:
            if node == name:
                demanded += sorted((key for key in keys if key != SHARED), key=lambda key: -self.sizes[key])
        return demanded, [keys for node, keys, nodes in self._pods if not node and name in nodes]

    def fitting(self, name: str, free: Sequence[int], without: str = "") -> list[str]:
        """The volumes that fit on a node together; the requester's are left out."""
        demanded, offered = self._wanted(name)
        counted: list[str] = []
        for part in (*([key] for key in demanded), *offered):
            trial = list(dict.fromkeys([*counted, *(key for key in part if key != without)]))
            counted = trial if brute_force([self.sizes[key] for key in trial], free, None) else counted
        return counted

    def roaming(self, layout: Layout) -> set[str]:
        """The volumes that do not fit on a node where they are demanded or offered."""
        roaming: set[str] = set()
        for name, free in zip(NODES, layout, strict=True):
            demanded, offered = self._wanted(name)
            roaming |= {*demanded, *(key for part in offered for key in part)} - {*self.fitting(name, free)}
        return roaming


@examples(150)
@given(layouts, other_pods, requests, st.lists(st.sampled_from((None, 0, 1)), min_size=4, max_size=4))
@example(
    [[4], [4], [4]],
    [("", [1], {"a"}), ("", [1], {"a"}), ("", [4], {"b"}), ("", [1], {"a", "b"})],
    [1],
    [None, None, 0, None],
)
def test_a_hold_counts_against_pods_of_at_most_its_priority(
    layout: Layout, others: list[OtherPod], requested: list[int], priorities: list[int | None]
) -> None:
    state = make.state(_cluster(layout, others, requested))
    ledger = Ledger()
    for number, (node, _, nodes) in enumerate(others):
        if not node:
            ledger = with_offer(ledger, state.view, f"o{number}", nodes, float(number), priority=priorities[number])
    contenders = make.competing(state, ledger)
    for priority in (0, 1, 2, 0):
        pod = replace(state.view.snapshot.pods["default", "p"], priority=priority)
        # A hold that does not count is one of no node.
        counting = [
            (node, sizes, nodes if node or held is None or priority <= held else set[str]())
            for (node, sizes, nodes), held in zip(others, priorities, strict=False)
        ]
        decision = filter_nodes(pod, NODES, state, EXACT, contenders)
        holding = {
            number: pod
            for number, (pod, held) in enumerate(zip(others, priorities, strict=False))
            if held is not None and not pod[0]
        }
        assert [reason.fits for reason in decision.reasons] == _expected(layout, counting, requested, holding=holding)


@examples(200)
@given(layouts, other_pods, requests)
def test_a_pod_fits_where_its_volumes_pack_together_with_demand_and_offers(
    layout: Layout, others: list[OtherPod], requested: list[int]
) -> None:
    """Demand comes first, older before younger, without hopeless demand; then offers; then the pod. Explain agrees."""
    state = make.state(_cluster(layout, others, requested))
    ledger = _ledger(state, others)
    decision = _decide(state, make.competing(state, ledger))
    assert [reason.fits for reason in decision.reasons] == _expected(layout, others, requested)
    pod = state.view.snapshot.pods["default", "p"]
    explanation = explain_nodes(pod, NODES, state, EXACT, make.competing(state, ledger))
    assert [verdict.reason for verdict in explanation.verdicts] == list(decision.reasons)
    names = {volume.name for volume in decision.resolution.local}
    assert all(set(verdict.plan) == names for verdict in explanation.verdicts if verdict.fits)
    alone = filter_nodes(pod, NODES, ClusterState.of(state.view), EXACT)
    assert all(
        alone_reason.fits for alone_reason, reason in zip(alone.reasons, decision.reasons, strict=True) if reason.fits
    )


def _reasons(decision: Decision) -> list[str]:
    return [reason.name for reason in decision.reasons]


@pytest.mark.parametrize(
    ("layout", "others", "size", "packing", "expected"),
    [
        # kube-scheduler's event and the nudger read this reason.
        pytest.param(
            [[10], [10], [2]], [("", [8], {"a", "b"})], 8, Packing.AUTO, "WAITING WAITING INSUFFICIENT_STORAGE", id="offered"
        ),
        pytest.param(
            [[60, 50], [2], [2]], [("", [50], {"a"})], 60, Packing.ORDER_SAFE, "WAITING INSUFFICIENT_STORAGE INSUFFICIENT_STORAGE",
            id="only an offer makes it order-unsafe",
        ),
        pytest.param(
            [[10], [5], [2]], [("a", [8], {"a"})], 8, Packing.AUTO, "SPOKEN_FOR INSUFFICIENT_STORAGE INSUFFICIENT_STORAGE",
            id="demanded: it does not wait",
        ),
    ],
)  # fmt: skip
def test_a_pod_waits_for_space_that_is_only_offered_to_another_pod(
    layout: Layout, others: list[OtherPod], size: int, packing: Packing, expected: str
) -> None:
    state = make.state(_cluster(layout, others, [size]))
    ledger = _ledger(state, [other for other in others if not other[0]])
    assert _reasons(_decide(state, make.competing(state, ledger), FilterOptions(packing=packing))) == expected.split()


def test_a_pod_does_not_compete_with_its_own_demand_and_offer() -> None:
    """kube-scheduler filters again after a failed binding; the claim keeps its selected node."""
    objects = _cluster([[10], [10], [10]], [], [8])
    for raw in objects:
        if raw["metadata"]["name"] == "p-0":
            raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    state = make.state(objects)
    assert [demand.volume.volume.size for demand in state.demand.all] == [8 * GI]
    ledger = with_offer(Ledger(), state.view, "p", NODES, 0.0)
    assert _reasons(_decide(state, make.competing(state, ledger), FilterOptions())) == ["ROOM", "ROOM", "ROOM"]


def test_equal_group_numbers_mean_equal_volumes_after_the_numbers_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached competitors outlive the table that numbers their groups."""
    monkeypatch.setattr("scheduler_core.evaluation.competing_volumes._MAX_GROUPS", 1)
    layout = [[10], [20], [20]]
    others: list[OtherPod] = [("a", [8], {"a"}), ("b", [12], {"b"}), ("c", [3], {"c"})]
    view = make.view(_cluster(layout, others, [9]))
    contention = Contention()
    for _ in range(2):
        state = ClusterState.of(view)
        decision = _decide(state, make.competing(state, contention=contention))
        assert [reason.fits for reason in decision.reasons] == _expected(layout, others, [9])


SharingPod = tuple[str, list[int], set[str], bool]
"""As `OtherPod`, and whether the pod mounts the shared claim."""
sharing_pods = st.lists(
    st.tuples(nodes_or_none, st.lists(volume_sizes, max_size=1), node_sets, st.booleans()), min_size=1, max_size=4
)


def _sharing_cluster(
    layout: Layout, others: Sequence[SharingPod], requested: Sequence[int], *, provisioned: bool
) -> list[Object]:
    objects = _cluster(layout, [pod[:3] for pod in others], requested)
    mount = {"name": "shared", "persistentVolumeClaim": {"claimName": "s"}}
    for raw in objects:
        name = raw["metadata"]["name"]
        if raw["kind"] == "Pod" and (name == "p" or others[int(name[1:])][3]):
            raw["spec"]["volumes"].append(mount)
    if not provisioned:
        return [*objects, make.claim(SHARED, SHARED_SIZE)]
    claim, _, volume = make.bound(SHARED, SHARED_SIZE)
    # The claimRef says whose volume it is.
    return [*objects, claim, make.persistent_volume(SHARED, uid=f"uid-{SHARED}"), volume]


def _expected_with_shared_claim(layout: Layout, others: Sequence[SharingPod], requested: Sequence[int]) -> list[bool]:
    """The shared claim counts for the requesting pod alone; a bound user ties it to its node."""
    users = {node for node, _, _, shares in others if node and shares}
    sharing = {number for number, pod in enumerate(others) if pod[3]}
    fits = _expected(layout, [pod[:3] for pod in others], [*requested, SHARED_SIZE], sharing)
    return [fit and (not users or name in users) for name, fit in zip(NODES, fits, strict=True)]


@examples(150)
@given(layouts, sharing_pods, st.lists(volume_sizes, max_size=1), st.booleans())
def test_a_claim_that_several_pods_mount_counts_once(
    layout: Layout, others: list[SharingPod], requested: list[int], provisioned: bool
) -> None:
    """Whether demanded, offered to several pods, or provisioned since; and whichever pod was evaluated before."""
    before = make.state(_sharing_cluster(layout, others, requested, provisioned=False))
    after = make.state(_sharing_cluster(layout, others, requested, provisioned=provisioned))
    ledger = _ledger(before, [pod[:3] for pod in others])
    contention = Contention()
    equivalence = EquivalenceCache()
    for state in (before, after):
        contenders = make.competing(state, ledger, contention, equivalence)
        _decide(state, contenders, name="o0")
        decision = _decide(state, contenders)
        expected = _expected_with_shared_claim(layout, others, requested)
        assert [reason.fits for reason in decision.reasons] == expected

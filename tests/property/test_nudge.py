"""Equivalent pods get equal decisions, and no sequence of nudges exceeds the rates."""

from itertools import product

from hypothesis import given, strategies as st

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.nudge_limits import BURST, NUDGE_LIMIT, NUDGES_PER_SECOND, equivalence_key
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.model.kube import Pod
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import Object
from tests.examples import examples

NODES = ("a", "b")
CLASSES = ("longhorn", "strict", "remote", "tagged")
Volumes = list[tuple[int, str]]
"""The size and StorageClass of each volume."""
PodSpec = tuple[Volumes, str, str]
"""A pod's volumes, the state of the first of them, and the pod's node."""

gap_lists = st.lists(st.one_of(st.floats(0, 0.2), st.floats(0, 200)), max_size=400)
DISK_SIZES = range(3, 13)
VOLUMES = list(product(range(1, 5), CLASSES))
# Lists of one or two, each a single draw.
disk_sizes = st.sampled_from([[size] for size in DISK_SIZES]) | st.sampled_from(
    [*map(list, product(DISK_SIZES, repeat=2))]
)
volume_lists = st.sampled_from([[volume] for volume in VOLUMES]) | st.sampled_from(
    [*map(list, product(VOLUMES, repeat=2))]
)
# The state of a pod's first volume; "shared": the pod mounts a claim of the first pod.
volume_states = st.sampled_from(("new", "new", "new", "bound", "placed", "selected", "shared"))
pod_specs = st.lists(
    st.tuples(volume_lists, volume_states, st.sampled_from(("", "", "", *NODES))), min_size=2, max_size=5
)


@examples(150)
@given(gap_lists)
def test_no_period_has_more_nudges_than_the_burst_and_the_rate_allow(gaps: list[float]) -> None:
    """A nudge is attempted after every gap, and sent if the bucket is ready. It waits at most the time between two nudges."""
    bucket = NUDGE_LIMIT
    now = 0.0
    sent = []
    for gap in gaps:
        now += gap
        if bucket.ready_at <= now:
            bucket = bucket.after(now)
            sent.append(now)
            assert bucket.ready_at - now <= 1 / NUDGES_PER_SECOND + 1e-9
    for first, begin in enumerate(sent):
        for last in range(first, len(sent)):
            assert last - first + 1 <= BURST + NUDGES_PER_SECOND * (sent[last] - begin) + 1e-6


def _cluster(layout: list[list[int]], pods: list[PodSpec]) -> list[Object]:
    objects: list[Object] = [
        make.storage_class("longhorn"),
        make.storage_class("strict", dataLocality="strict-local"),
        make.storage_class("remote", dataLocality="disabled"),
        make.storage_class("tagged", diskSelector="ssd"),
    ]
    for name, sizes in zip(NODES, layout, strict=True):
        disks = {f"disk-{number}": make.disk(size, tags=["ssd"] if number else []) for number, size in enumerate(sizes)}
        objects.append(make.longhorn_node(name, disks))
    for number, spec in enumerate(pods):
        objects += _pod_with_claims(number, spec)
    return objects


def _pod_with_claims(number: int, spec: PodSpec) -> list[Object]:
    volumes, state, node = spec
    names = [f"x{number}-{index}" for index in range(len(volumes))]
    objects = [make.claim(name, size, storage_class=kind) for name, (size, kind) in zip(names, volumes, strict=True)]
    first = names[0]
    size = volumes[0][0]
    if state in ("bound", "placed"):
        objects[:1] = make.bound(first, size)
    if state == "placed":
        objects.append(make.replica(f"r{number}", f"vol-{first}", "a", size=size, disk="disk-0"))
    if state == "selected":
        objects[0]["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "b"}
    if state == "shared":
        names[0] = "x0-0"
    return [*objects, make.pod(*names, name=f"x{number}", uid=f"uid-{number}", node=node)]


@examples(200)
@given(
    st.lists(disk_sizes, min_size=2, max_size=2), pod_specs, volume_lists, st.sets(st.sampled_from(NODES), min_size=1)
)
def test_equivalent_pods_fit_on_the_same_nodes_whatever_competes(
    layout: list[list[int]], pods: list[PodSpec], volumes: Volumes, offered_nodes: set[str]
) -> None:
    """Two pods with equal new claims are always among bound pods, partly provisioned pods, and an offer."""
    state = make.state(_cluster(layout, [*pods, (volumes, "new", ""), (volumes, "new", "")]))
    first_pod = state.view.snapshot.pods["default", "x0"]
    offered = Offered(ObservedPod("uid-offered"), frozenset(offered_nodes), resolve(first_pod, state.view).local)
    ledger, _ = step(Ledger(), offered, 0.0)
    fits_by_key: dict[object, list[bool]] = {}
    equivalent = 0
    for pod in state.view.snapshot.pods.values():
        if pod.node_name or pod.uid == first_pod.uid:
            continue
        key = equivalence_key(pod, resolve(pod, state.view), state.view)
        if key is None:
            continue
        fits = _fits(pod, ClusterState.of(state.view), ledger)
        equivalent += key in fits_by_key
        assert fits_by_key.setdefault(key, fits) == fits
    assert equivalent


def _fits(pod: Pod, state: ClusterState, ledger: Ledger) -> list[bool]:
    options = FilterOptions(packing=Packing.ORDER_SAFE)
    decision = filter_nodes(pod, NODES, state, options, make.competing(state, ledger))
    return [reason.fits for reason in decision.reasons]

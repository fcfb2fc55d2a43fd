"""A decision about volumes that depend on the node or on chance, compared with one decision per node and possible match.

In the comparison the claims are bound already, so every node is decided about as ever.
"""

from typing import Any

from hypothesis import given, strategies as st

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.model.verdict import Reason
from scheduler_core.volumes.free_volume_matching import match_volumes
from tests import builders as make
from tests.builders import Object, as_pod
from tests.examples import examples

NODES = ("a", "b", "c")
OPTIONS = FilterOptions(packing=Packing.EXACT)

_volumes = st.builds(
    lambda size, place, admitted, locality, foreign: (size, place, admitted, locality, foreign),
    st.sampled_from([10, 10, 20]),
    st.sampled_from(["", *NODES, *NODES]),
    st.sampled_from(["", "", *NODES]),
    st.sampled_from(["best-effort", "strict-local", "disabled"]),
    st.integers(0, 9).map(lambda number: number == 0),
)


def _cluster(sizes: dict[str, int], claims: dict[str, int], volumes: list[Any]) -> list[Object]:
    objects = [make.storage_class(), *(make.longhorn_node(name, size) for name, size in sizes.items())]
    objects += [make.kube_node(name, node=name) for name in NODES]
    objects += [make.claim(name, size) for name, size in claims.items()]
    for index, (size, place, admitted, locality, foreign) in enumerate(volumes):
        driver = "nfs.csi.k8s.io" if foreign else "driver.longhorn.io"
        places = (place,) if place and not foreign else ()
        objects += make.kept(f"pv-{index}", size, *places, locality=locality, node=admitted, driver=driver)
    return objects


def _bound(objects: list[Object], match: dict[str, str]) -> list[Object]:
    bound = []
    for raw in objects:
        name = raw["metadata"]["name"]
        if raw["kind"] == "PersistentVolumeClaim" and name in match:
            bound.append({**raw, "spec": {**raw["spec"], "volumeName": match[name]}})
        elif raw["kind"] == "PersistentVolume" and name in match.values():
            bound.append({**raw, "status": {"phase": "Bound"}})
        else:
            bound.append(raw)
    return bound


@examples(150)
@given(
    st.fixed_dictionaries({name: st.integers(10, 60) for name in NODES}),
    st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from([5, 10, 20]), min_size=1),
    st.lists(_volumes, max_size=3),
)
def test_a_node_fits_if_it_fits_for_every_possible_match(
    sizes: dict[str, int], claims: dict[str, int], volumes: list[Any]
) -> None:
    """Unless the pod has a home elsewhere, whatever is matched there."""
    objects = _cluster(sizes, claims, volumes)
    pod = as_pod(make.pod(*claims))
    state = make.state(*objects)
    decision = filter_nodes(pod, NODES, state, OPTIONS)
    groups = match_volumes(pod, NODES, state.view)
    reasons: dict[str, list[Reason]] = {}
    for name in NODES:
        matches = [match for group in groups if group.nodes is None or name in group.nodes for match in group.matches]
        for match in matches or [{}]:
            bound_state = make.state(*_bound(objects, dict(match)))
            [reason] = filter_nodes(pod, [name], bound_state, OPTIONS).reasons
            reasons.setdefault(name, []).append(reason)
    homes = {name for name, each in reasons.items() if set(each) == {Reason.HOME}}
    expected = {
        name: all(reason.fits for reason in each) and (not homes or name in homes or set(each) == {Reason.NO_VOLUMES})
        for name, each in reasons.items()
    }
    assert dict(zip(NODES, (reason.fits for reason in decision.reasons), strict=True)) == expected

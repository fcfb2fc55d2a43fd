"""volumeTopology ties a new volume to the zone or the region of its pod's node."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.errors import ResolutionError
from tests import builders as make
from tests.builders import Object, explained, fitting, reasons

ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
KEYS = make.setting("csi-allowed-topology-keys", f"{ZONE}, {REGION}")
STRICT = make.setting("allow-volume-creation-with-degraded-availability", "false")
POD = make.pod("x")
EXACT = FilterOptions(packing=Packing.EXACT)


def node(name: str, zone: str = "", region: str = "", free: float = 100) -> Object:
    entry = make.longhorn_node(name, {"d": make.disk(100, scheduled=100 - free)}, zone=zone)
    entry["status"]["region"] = region
    return entry


def tied_class(topology: str = "zonal", **parameters: str) -> Object:
    """A class without locality."""
    values: dict[str, Any] = {"dataLocality": "disabled", "volumeTopology": topology, **parameters}
    return make.storage_class(**values)


NODES = [node("a", "z1", free=5), node("b", "z1", free=5), node("c", "z2")]


def test_a_zone_without_room_refuses_its_nodes() -> None:
    explanation = explained(POD, *NODES, make.claim("x", 10), tied_class(), KEYS)
    assert fitting(explanation) == ["c"]
    assert "no disk of zone z1 can take x (10Gi)" in explanation.verdicts[0].detail


ROOMY = [node("a", "z1"), node("b", "z1"), node("c", "z2")]
REGIONS = [node("a", "z1", "r1"), node("b", "z2", "r1"), node("c", "z3", "r2")]
TWO = tied_class(numberOfReplicas="2")
TWO_IN_REGION = tied_class("regional", numberOfReplicas="2")
OLD = make.setting("current-longhorn-version", "v1.12.2")
HARD = make.setting("replica-zone-soft-anti-affinity", "false")
# Nodes, class and settings -> the nodes that fit.
TIED: dict[str, tuple[list[Object], Object, list[Object], str]] = {
    "an older Longhorn does not know the parameter": (NODES, tied_class(), [OLD], "abc"),
    "an older Longhorn does not know its values": (NODES, tied_class("unknown"), [OLD], "abc"),
    "an untied volume may be anywhere": (NODES, tied_class("any"), [KEYS], "abc"),
    "without a value a volume is not tied": (NODES, tied_class(""), [KEYS], "abc"),
    "a zone must take all replicas": (ROOMY, TWO, [KEYS, STRICT], "ab"),
    "a zone must take one replica of a volume that may be degraded": (ROOMY, TWO, [KEYS], "abc"),
    # Longhorn sets the volume's own value, because one zone cannot keep it.
    "hard anti-affinity of zones does not count": (ROOMY[:2], TWO, [KEYS, STRICT, HARD], "ab"),
    "a region may have several zones": (REGIONS, TWO_IN_REGION, [KEYS, STRICT], "ab"),
    "a node without a zone ties to nothing": ([node("a", free=5), node("c", "z2")], tied_class(), [KEYS], "ac"),
    # It stays on its pod's node anyway, so that no setting is needed.
    "a strict-local volume is not tied": (NODES, tied_class(dataLocality="strict-local"), [], "c"),
}


@pytest.mark.parametrize(("nodes", "storage_class", "settings", "expected"), TIED.values(), ids=TIED)
def test_a_volume_stays_where_it_is_tied_to(
    nodes: list[Object], storage_class: Object, settings: list[Object], expected: str
) -> None:
    assert fitting(explained(POD, *nodes, make.claim("x", 10), storage_class, settings)) == list(expected)


@pytest.mark.parametrize(("topology", "key"), [("zonal", ZONE), ("regional", REGION)])
def test_a_label_that_longhorn_may_not_read_is_an_error(topology: str, key: str) -> None:
    with pytest.raises(ResolutionError, match=f"volumeTopology {topology} needs {key} in the setting"):
        explained(POD, node("a", "z1", "r1"), make.claim("x", 10), tied_class(topology))


def test_a_zonal_volume_with_hard_anti_affinity_of_its_own_is_an_error() -> None:
    """No second replica would have a place."""
    hard = tied_class(replicaZoneSoftAntiAffinity="disabled")
    with pytest.raises(ResolutionError, match="does not go with a volume that stays in one zone"):
        explained(POD, *NODES, make.claim("x", 10), hard, KEYS)


def test_the_volumes_of_a_decision_are_listed_once() -> None:
    explanation = explained(POD, *NODES, make.claim("x", 10), tied_class(), KEYS)
    (volume,) = explanation.decision.resolution.volumes
    assert (volume.nodes, volume.volume.topology_requirement) == (None, ())


def test_the_demand_of_a_pod_that_is_placed_counts_in_its_zone() -> None:
    first = [make.claim("y", 60), make.pod("y", name="y", uid="y", node="c")]
    cluster = [*first, node("a", "z1"), node("c", "z2"), make.claim("x", 60), tied_class(), KEYS]
    state = make.state(*cluster)
    (counted,) = state.demand.unplaced.counted
    assert [term.zone for term in counted.volume.volume.topology_requirement] == ["z2"]
    explanation = explained(POD, *cluster)
    assert set(reasons(explanation)) == {"a", "c"}


@given(
    free=st.lists(st.integers(0, 40), min_size=2, max_size=5),
    zones=st.lists(st.sampled_from("zy"), min_size=5, max_size=5),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=2),
    parameters=st.fixed_dictionaries(
        {"numberOfReplicas": st.sampled_from("123"), "dataLocality": st.sampled_from(["disabled", "best-effort"])}
    ),
    degraded=st.booleans(),
)
def test_a_node_fits_if_it_would_in_a_cluster_of_its_zone_alone(
    *, free: list[int], zones: list[str], sizes: list[int], parameters: dict[str, str], degraded: bool
) -> None:
    nodes = {f"n{index}": node(f"n{index}", zones[index], free=entry) for index, entry in enumerate(free)}
    names = [f"c{index}" for index in range(len(sizes))]
    claims = [make.claim(name, size) for name, size in zip(names, sizes, strict=True)]
    objects = [*claims, KEYS, *([] if degraded else [STRICT])]
    pod = make.pod(*names)
    fits = set(fitting(explained(pod, *nodes.values(), *objects, tied_class(**parameters), options=EXACT)))
    alone = set()
    for zone in set(zones):
        members = [entry for name, entry in nodes.items() if zones[int(name[1:])] == zone]
        if members:
            free_class = tied_class("any", replicaZoneSoftAntiAffinity="enabled", **parameters)
            alone.update(fitting(explained(pod, *members, *objects, free_class, options=EXACT)))
    assert fits == alone

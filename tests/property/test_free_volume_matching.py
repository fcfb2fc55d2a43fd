"""Which PersistentVolumes are predicted for a pod's claims, compared with kube-scheduler's source read line by line.

The reference below follows binder.go and FindMatchingVolume over raw objects. It is run with every order of the volumes, because that order is
random in kube-scheduler (the index of the informer's cache is a Go map).
"""

from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any

from hypothesis import given, strategies as st

from scheduler_core.cluster.view import View
from scheduler_core.volumes.free_volume_matching import match_volumes
from tests import builders as make
from tests.builders import Object, as_pod
from tests.examples import examples
from tests.worlds.documented_scheduling import selects

NODES = {"a": {"zone": "x", "rank": "1"}, "b": {"zone": "y", "rank": "7"}, "c": {"zone": "y"}}
CLASSES = ("longhorn", "other")
_classes = st.sampled_from(["longhorn", "longhorn", "longhorn", "longhorn", "other"])

_requirements = st.one_of(
    st.builds(lambda key, values: {"key": key, "operator": "In", "values": values}, st.just("zone"), st.sampled_from([["x"], ["y"], ["x", "y"]])),
    st.builds(lambda values: {"key": "zone", "operator": "NotIn", "values": values}, st.sampled_from([["x"], ["y"]])),
    st.builds(lambda operator: {"key": "rank", "operator": operator}, st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(lambda operator, value: {"key": "rank", "operator": operator, "values": [value]}, st.sampled_from(["Gt", "Lt"]), st.sampled_from(["3", "-1"])),
    st.just({"key": "zone", "operator": "Near", "values": ["x"]}),
)  # fmt: skip
_terms = st.one_of(
    st.builds(lambda requirements: {"matchExpressions": requirements}, st.lists(_requirements, max_size=2)),
    st.just({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}),
    st.just({"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}),
)
_affinities = st.one_of(
    st.none(),
    st.none(),
    st.builds(lambda terms: {"required": {"nodeSelectorTerms": terms}}, st.lists(_terms, max_size=2)),
)
_selectors = st.one_of(
    st.none(),
    st.none(),
    st.none(),
    st.none(),
    st.just({}),
    st.builds(lambda value: {"matchLabels": {"tier": value}}, st.sampled_from(["gold", "iron"])),
    st.builds(
        lambda operator: {"matchExpressions": [{"key": "tier", "operator": operator}]},
        st.sampled_from(["Exists", "DoesNotExist"]),
    ),
)
_modes = st.sampled_from([*[["ReadWriteOnce"]] * 6, ["ReadWriteOnce", "ReadWriteMany"], ["ReadWriteMany"]])
_volume_modes = st.sampled_from([*[None] * 6, "Filesystem", "Block"])


@st.composite
def _volumes(draw: st.DrawFn, name: str) -> Object:
    sizes: list[float | str] = [10, 20, "20Gi", 30]
    raw = make.available_volume(
        name,
        draw(st.sampled_from(sizes)),
        storage_class=draw(_classes),
        driver=draw(st.sampled_from(["driver.longhorn.io", "driver.longhorn.io", "nfs.csi.k8s.io"])),
        labels=draw(st.sampled_from([{}, {"tier": "gold"}, {"tier": "iron"}])),
        accessModes=draw(_modes),
    )
    affinity = draw(_affinities)
    if affinity is not None:
        raw["spec"]["nodeAffinity"] = affinity
    mode = draw(_volume_modes)
    if mode is not None:
        raw["spec"]["volumeMode"] = mode
    raw["status"]["phase"] = draw(st.sampled_from([*["Available"] * 6, "Released", "Pending"]))
    if draw(st.integers(0, 9)) == 0:
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if draw(st.integers(0, 9)) == 0:
        raw["spec"]["claimRef"] = {"namespace": "default", "name": "someone-else", "uid": "uid-x"}
    return raw


@st.composite
def _claims(draw: st.DrawFn, name: str) -> Object:
    raw = make.claim(name, draw(st.sampled_from([None, 5, 10, 20, 25])), storage_class=draw(_classes))
    raw["spec"]["accessModes"] = draw(_modes)
    selector = draw(_selectors)
    if selector is not None:
        raw["spec"]["selector"] = selector
    mode = draw(_volume_modes)
    if mode is not None:
        raw["spec"]["volumeMode"] = mode
    if draw(st.integers(0, 7)) == 0:
        raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    return raw


# --- The source, read line by line -----------------------------------------------------------------------------------


def _outcomes(claims: Iterable[Object], volumes: Iterable[Object], labels: Mapping[str, str]) -> set[tuple[Any, ...]]:
    to_bind = [claim for claim in claims if "annotations" not in claim["metadata"]]
    to_bind.sort(key=lambda claim: int(claim["spec"]["resources"]["requests"].get("storage", 0)))
    outcomes = set()
    for order in permutations(volumes):
        chosen: dict[str, str] = {}
        for claim in to_bind:
            name = _find_matching_volume(claim, order, labels, set(chosen.values()))
            if name is not None:
                chosen[claim["metadata"]["name"]] = name
        outcomes.add(tuple(sorted(chosen.items())))
    return outcomes


def _find_matching_volume(
    claim: Object, volumes: Iterable[Object], labels: Mapping[str, str], excluded: set[str]
) -> str | None:
    smallest: tuple[int, str] | None = None
    requested = int(claim["spec"]["resources"]["requests"].get("storage", 0))
    for volume in volumes:
        spec = volume["spec"]
        if volume["metadata"]["name"] in excluded or "claimRef" in spec:
            continue
        text = spec["capacity"]["storage"]
        quantity = int(text.removesuffix("Gi")) * make.GI if text.endswith("Gi") else int(text)
        if quantity < requested:
            continue
        if (claim["spec"].get("volumeMode") or "Filesystem") != (spec.get("volumeMode") or "Filesystem"):
            continue
        if "deletionTimestamp" in volume["metadata"]:
            continue
        admitted = _node_affinity_is_valid(spec, labels)
        if volume["status"]["phase"] != "Available":
            continue
        selector = claim["spec"].get("selector")
        if selector is not None and not selects(selector, volume["metadata"]["labels"]):
            continue
        if spec["storageClassName"] != claim["spec"]["storageClassName"] or not admitted:
            continue
        if not set(claim["spec"]["accessModes"]) <= set(spec["accessModes"]):
            continue
        if smallest is None or smallest[0] > quantity:
            smallest = (quantity, volume["metadata"]["name"])
    return smallest[1] if smallest is not None else None


def _node_affinity_is_valid(spec: Object, labels: Mapping[str, str]) -> bool:
    if "nodeAffinity" not in spec:
        return True
    for term in spec["nodeAffinity"]["required"]["nodeSelectorTerms"]:
        expressions = term.get("matchExpressions", [])
        fields = term.get("matchFields", [])
        if not expressions and not fields:
            continue
        if any(entry["operator"] not in ("In", "NotIn") for entry in fields):
            continue
        # A number is checked as a label value, too, which starts with no sign.
        if any(entry["operator"] == "Near" or entry.get("values") == ["-1"] for entry in expressions):
            continue
        # The node object that is compared has labels only, so fields are not looked at.
        if selects(term, labels):
            return True
    return False


# ---------------------------------------------------------------------------------------------------------------------


def _cluster(claims: Iterable[Object], volumes: Iterable[Object]) -> View:
    classes = [make.storage_class(name) for name in CLASSES]
    nodes = [make.kube_node(name, **labels) for name, labels in NODES.items()]
    longhorn_volumes = [make.volume(f"vol-{raw['metadata']['name']}", 10) for raw in volumes]
    return make.view(*classes, *nodes, *claims, *volumes, *longhorn_volumes)


def _alike(volumes: Iterable[Object]) -> dict[str, object]:
    return {
        raw["metadata"]["name"]: raw["metadata"]["name"]
        if raw["spec"]["csi"]["driver"] == "driver.longhorn.io"
        else repr((raw["metadata"]["labels"], raw["spec"]["accessModes"], raw["spec"].get("nodeAffinity")))
        for raw in volumes
    }


@examples(300)
@given(st.data(), st.integers(1, 3), st.integers(0, 4))
def test_the_possible_matches_of_a_node_are_those_of_kube_scheduler(
    data: st.DataObject, claim_count: int, volume_count: int
) -> None:
    claims = [data.draw(_claims(f"claim-{index}")) for index in range(claim_count)]
    volumes = [data.draw(_volumes(f"pv-{index}")) for index in range(volume_count)]
    pod = make.pod(*(raw["metadata"]["name"] for raw in claims))
    view = _cluster(claims, volumes)
    alike = _alike(volumes)

    def project(outcomes: Iterable[tuple[Any, ...]]) -> set[object]:
        return {tuple((claim, alike[name]) for claim, name in outcome) for outcome in outcomes}

    groups = match_volumes(as_pod(pod), list(NODES), view)
    for node, labels in NODES.items():
        predicted = [group.matches for group in groups if group.nodes is None or node in group.nodes]
        assert len(predicted) <= 1
        matches = [tuple(sorted(match.items())) for match in (predicted[0] if predicted else ({},))]
        assert project(matches) == project(_outcomes(claims, volumes, labels))

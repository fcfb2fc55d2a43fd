"""The names of claims do not matter: a decision is the same after its claims have been renamed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler_core.cooperative import run_to_end
from scheduler_core.extender.decision import FilterOptions, Packing
from scheduler_core.extender.explain import explain_nodes
from tests.builders import (
    Object,
    as_pod,
    available_volume,
    claim,
    competing,
    disk,
    longhorn_node,
    persistent_volume,
    pod,
    replica,
    state,
    storage_class,
    volume,
)

NAME = re.compile(r"(?:default/)?((?:claim|vol|vol-free)-\d)")


def kind(size: int, engine: str, *selectors: str) -> str:
    """What distinguishes a volume from others, whatever it is called."""
    return "-".join([f"{size}Gi", engine, *filter(None, selectors)])


@dataclass(frozen=True)
class Claim:
    """A claim without its name.

    `place` is where the only replica of its bound volume is, `holder` the node of the other pod that has it.
    """

    size: int
    bound: bool
    locality: str
    disk_selector: str
    node_selector: str
    engine: str
    image: str
    clone: str
    place: str
    holder: str

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of its StorageClass."""
        values = {
            "dataLocality": self.locality,
            "diskSelector": self.disk_selector,
            "nodeSelector": self.node_selector,
            "dataEngine": "v2" if self.clone else self.engine,
            "backingImage": self.image,
            "cloneMode": self.clone,
            "dataSource": f"vol://source-{self.size}" if self.clone else "",
        }
        return {key: value for key, value in values.items() if value}

    @property
    def volume_spec(self) -> dict[str, Any]:
        """The spec of its Longhorn volume."""
        selectors = {
            key: self.parameters[key].split(",") for key in ("diskSelector", "nodeSelector") if self.parameters.get(key)
        }
        return {key: value for key, value in self.parameters.items() if key != "dataLocality"} | selectors


CLAIMS = st.builds(
    Claim,
    size=st.sampled_from([10, 20, 20, 40]),
    bound=st.booleans(),
    locality=st.sampled_from(["best-effort"] * 6 + ["strict-local", "disabled"]),
    disk_selector=st.sampled_from(["", "", "ssd", "hdd"]),
    node_selector=st.sampled_from([""] * 7 + ["db"]),
    engine=st.sampled_from(["v1"] * 7 + ["v2"]),
    image=st.sampled_from([""] * 15 + ["none"]),
    clone=st.sampled_from([""] * 15 + ["linked-clone"]),
    place=st.sampled_from([""] * 4 + ["n0", "n1"]),
    holder=st.sampled_from(["", "n0", "n1"]),
)
DISKS = st.builds(
    disk,
    st.sampled_from([40, 60]),
    scheduled=st.sampled_from([0, 10, 30]),
    tags=st.sampled_from([(), ("ssd",), ("hdd",)]),
    allow=st.sampled_from([True] * 7 + [False]),
    kind=st.sampled_from(["filesystem"] * 7 + ["block"]),
)
NODES = st.tuples(st.lists(DISKS, min_size=1, max_size=3), st.sampled_from([(), (), ("db",)]))
# The claim whose class it is of, Gi, its volume's engine and disk selector.
FREE_VOLUMES = st.tuples(
    st.integers(0, 3), st.sampled_from([20, 40]), st.sampled_from(["v1", "v2"]), st.sampled_from(["", "ssd"])
)


@dataclass(frozen=True)
class Cluster:
    """A pod's claims and their surroundings; the pod has the first `own` claims, other pods may have the others."""

    nodes: list[tuple[list[Object], tuple[str, ...]]]
    claims: list[Claim]
    free: list[tuple[int, int, str, str]]
    own: int

    def objects(self, names: Sequence[str]) -> list[Object]:
        """The Kubernetes objects; only claims, and what refers to them, depend on `names`."""
        raw_objects = [
            longhorn_node(f"n{index}", {f"d{number}": entry for number, entry in enumerate(disks)}, tags=tags)
            for index, (disks, tags) in enumerate(self.nodes)
        ]
        # A clone has the size and the engine of its source.
        raw_objects += [
            volume(f"source-{size}", size, dataEngine="v2")
            for size in {entry.size for entry in self.claims if entry.clone}
        ]
        for index, (entry, name) in enumerate(zip(self.claims, names, strict=True)):
            raw_claim = claim(name, entry.size, bound=entry.bound, storage_class=f"class-{index}")
            raw_objects += [raw_claim, storage_class(f"class-{index}", **entry.parameters)]
            if entry.bound:
                raw_claim["spec"]["volumeName"] = f"pv-{index}"
                raw_objects += [
                    persistent_volume(str(index)),
                    volume(f"vol-{index}", entry.size, locality=entry.locality, **entry.volume_spec),
                ]
                if entry.place:
                    raw_objects.append(replica(f"r{index}", f"vol-{index}", entry.place, disk="d0", size=entry.size))
            if entry.holder and index >= self.own:
                raw_objects.append(pod(name, name=f"holder-{index}", uid=f"uid-{index}", node=entry.holder))
        for index, (of_claim, size, engine, selector) in enumerate(self.free):
            selectors: dict[str, Any] = {"diskSelector": [selector]} if selector else {}
            raw_objects += [
                available_volume(f"free-{index}", size, storage_class=f"class-{of_claim}"),
                volume(f"vol-free-{index}", size, dataEngine=engine, **selectors),
            ]
        return raw_objects

    def answers(self, names: Sequence[str]) -> list[Object]:
        """Everything said about each node: volumes by what they are, and the words in order."""
        current = state(self.objects(names))
        requested = as_pod(pod(*names[: self.own]))
        candidates = [f"n{index}" for index in range(len(self.nodes))]
        options = FilterOptions(packing=Packing.ORDER_SAFE)
        explanation = run_to_end(explain_nodes(requested, candidates, current, options, competing(current)))
        kinds = {f"vol-free-{index}": kind(*entry[1:]) for index, entry in enumerate(self.free)}
        for index, (entry, name) in enumerate(zip(self.claims, names, strict=True)):
            kinds[f"vol-{index}"] = kind(
                entry.size, entry.engine, entry.disk_selector, entry.node_selector, entry.image, entry.clone
            )
            kinds[name] = kinds[f"vol-{index}"]
        return [
            {
                "reason": verdict.reason.name,
                "missing": verdict.missing,
                "order safe": verdict.order_safe,
                "volumes in the plan": len(verdict.plan),
                "words": sorted(
                    re.findall("[^ ,;()]+", NAME.sub(lambda match: kinds.get(match[1], match[1]), verdict.detail))
                ),
            }
            for verdict in explanation.verdicts
        ]


CLUSTERS = st.integers(2, 4).flatmap(
    lambda count: st.builds(
        Cluster,
        st.lists(NODES, min_size=1, max_size=3),
        st.lists(CLAIMS, min_size=count, max_size=count),
        st.lists(FREE_VOLUMES, max_size=2),
        st.integers(1, count),
    )
)


CLONED = Claim(
    size=10,
    bound=True,
    locality="best-effort",
    disk_selector="",
    node_selector="",
    engine="v1",
    image="",
    clone="linked-clone",
    place="",
    holder="",
)


@settings(max_examples=300)
@given(CLUSTERS, st.permutations(range(4)))
@example(Cluster([([disk(40)], ())], [CLONED, replace(CLONED, node_selector="db")], [], 2), [1, 0, 2, 3])
def test_renamed_claims_change_no_answer(cluster: Cluster, order: list[int]) -> None:
    """Ties are broken by sizes, selectors and engines first, and by names last."""
    count = len(cluster.claims)
    names = [f"claim-{index}" for index in range(count)]
    renamed = [names[index] for index in order if index < count]
    assert cluster.answers(renamed) == cluster.answers(names)

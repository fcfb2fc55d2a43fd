"""Clusters that differ in what a pod's claims are: sizes, selectors, engines, clones, existing volumes and other pods."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.explain import explain_nodes
from tests import builders as make

NAME = re.compile(r"(?:default/)?((?:claim|vol|vol-free)-\d)")


def kind(size: int, engine: str, *selectors: str) -> str:
    """What distinguishes a volume from others, whatever it is called."""
    return "-".join([f"{size}Gi", engine, *filter(None, selectors)])


@dataclass(frozen=True)
class Claim:
    """A claim without its name. `place` is where the only replica of its bound volume is, `holder` the node of the other pod that has it."""

    size: int = 10
    bound: bool = False
    locality: str = "best-effort"
    disk_selector: str = ""
    node_selector: str = ""
    engine: str = "v1"
    image: str = ""
    clone: str = ""
    place: str = ""
    holder: str = ""

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
        selectors = {
            key: self.parameters[key].split(",") for key in ("diskSelector", "nodeSelector") if self.parameters.get(key)
        }
        return {key: value for key, value in self.parameters.items() if key != "dataLocality"} | selectors


CLAIM_VALUES: Mapping[str, Sequence[Any]] = {
    "size": (10, 20, 20, 40),
    "bound": (False, True),
    "locality": ("best-effort",) * 6 + ("strict-local", "disabled"),
    "disk_selector": ("", "", "ssd", "hdd"),
    "node_selector": ("",) * 7 + ("db",),
    "engine": ("v1",) * 7 + ("v2",),
    "image": ("",) * 15 + ("none",),
    "clone": ("",) * 15 + ("linked-clone",),
    "place": ("",) * 4 + ("n0", "n1"),
    "holder": ("", "n0", "n1"),
}
DISK_VALUES: Mapping[str, Sequence[Any]] = {
    "size": (40, 60),
    "scheduled": (0, 10, 30),
    "tags": ((), ("ssd",), ("hdd",)),
    "allow": (True,) * 7 + (False,),
    "kind": ("filesystem",) * 7 + ("block",),
}
NODE_TAGS = ((), (), ("db",))
# Of a free volume: the claim whose class it is of, Gi, its engine and disk selector.
FREE_VALUES: Sequence[Sequence[Any]] = ((0, 1, 2, 3), (20, 40), ("v1", "v2"), ("", "ssd"))


@dataclass(frozen=True)
class Cluster:
    """A pod's claims and their surroundings; the pod has the first `own` claims, other pods may have the others."""

    nodes: list[tuple[list[make.Object], tuple[str, ...]]]
    claims: list[Claim]
    free: list[tuple[int, int, str, str]]
    own: int

    def objects(self, names: Sequence[str]) -> list[make.Object]:
        """The Kubernetes objects; only claims, and what refers to them, depend on `names`."""
        raw_objects = [
            make.longhorn_node(f"n{index}", {f"d{number}": entry for number, entry in enumerate(disks)}, tags=tags)
            for index, (disks, tags) in enumerate(self.nodes)
        ]
        # A clone has the size and the engine of its source.
        raw_objects += [
            make.volume(f"source-{size}", size, dataEngine="v2")
            for size in {entry.size for entry in self.claims if entry.clone}
        ]
        for index, (entry, name) in enumerate(zip(self.claims, names, strict=True)):
            raw_claim = make.claim(name, entry.size, bound=entry.bound, storage_class=f"class-{index}")
            raw_objects += [raw_claim, make.storage_class(f"class-{index}", **entry.parameters)]
            if entry.bound:
                raw_claim["spec"]["volumeName"] = f"pv-{index}"
                raw_objects += [
                    make.persistent_volume(str(index)),
                    make.volume(f"vol-{index}", entry.size, locality=entry.locality, **entry.volume_spec),
                ]
                if entry.place:
                    raw_objects.append(
                        make.replica(f"r{index}", f"vol-{index}", entry.place, disk="d0", size=entry.size)
                    )
            if entry.holder and index >= self.own:
                raw_objects.append(make.pod(name, name=f"holder-{index}", uid=f"uid-{index}", node=entry.holder))
        for index, (of_claim, size, engine, selector) in enumerate(self.free):
            selectors: dict[str, Any] = {"diskSelector": [selector]} if selector else {}
            raw_objects += [
                make.available_volume(f"free-{index}", size, storage_class=f"class-{of_claim}"),
                make.volume(f"vol-free-{index}", size, dataEngine=engine, **selectors),
            ]
        return raw_objects

    def answers(self, names: Sequence[str]) -> list[make.Object]:
        """Everything said about each node: volumes by what they are, and the words in order."""
        current = make.state(self.objects(names))
        requested = make.as_pod(make.pod(*names[: self.own]))
        candidates = [f"n{index}" for index in range(len(self.nodes))]
        options = FilterOptions(packing=Packing.ORDER_SAFE)
        explanation = explain_nodes(requested, candidates, current, options, make.competing(current))
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


def draw_cluster(chance: random.Random) -> Cluster:
    """Draws a cluster of one to three nodes; its pods have two to four claims."""

    def draw(values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        return {name: chance.choice(choices) for name, choices in values.items()}

    count = chance.randint(2, 4)
    return Cluster(
        nodes=[
            ([make.disk(**draw(DISK_VALUES)) for _ in range(chance.randint(1, 3))], chance.choice(NODE_TAGS))
            for _ in range(chance.randint(1, 3))
        ],
        claims=[Claim(**draw(CLAIM_VALUES)) for _ in range(count)],
        free=[_free_volume(chance) for _ in range(chance.randint(0, 2))],
        own=chance.randint(1, count),
    )


def _free_volume(chance: random.Random) -> tuple[int, int, str, str]:
    of_claim, size, engine, selector = map(chance.choice, FREE_VALUES)
    return of_claim, size, engine, selector

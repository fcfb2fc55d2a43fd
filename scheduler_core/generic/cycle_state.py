"""One pod to be scheduled, and what several rules want to know about it: found once, when the first of them asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from scheduler_core.errors import CoreError
from scheduler_core.generic.cluster_state import Selection, State, Turn
from scheduler_core.generic.volume_facts import NOTHING_KNOWN, LonghornFacts
from scheduler_core.model.generic import Pod


class UndecidableError(CoreError):
    """A predicate cannot be decided for any node, so the pod is not scheduled now."""


@dataclass(frozen=True, slots=True)
class Argument:
    """What a configurable rule was given: labels (a priority has one), and whether they shall be there."""

    labels: tuple[str, ...] = ()
    presence: bool = False


NO_ARGUMENT: Final = Argument()


@dataclass(frozen=True)
class Question:
    """A pod, the cluster, and what was found out about the pod's Longhorn volumes."""

    pod: Pod
    state: State
    longhorn: LonghornFacts = field(default=NOTHING_KNOWN)

    @cached_property
    def services(self) -> tuple[Selection, ...]:
        """The services that select the pod, in order, with the assigned pods they select (GetPodServices)."""
        listed = self.state.services.get(self.pod.namespace, ())
        return tuple(one for one in listed if one.service.selects(self.pod.labels))

    @cached_property
    def peers(self) -> Mapping[Turn, Pod]:
        """The assigned pods of the pod's first service by turn; finished ones too."""
        return self.services[0].members if self.services else {}

    @cached_property
    def peers_by_node(self) -> Counter[str]:
        """How many peers are on each node, whether it exists or not."""
        return Counter(pod.node_name for pod in self.peers.values())

    @cached_property
    def relatives_by_node(self) -> Counter[str]:
        """The same for the assigned pods of any of the pod's services; a pod of several counts once."""
        if len(self.services) <= 1:
            return self.peers_by_node
        relatives = {turn: pod for one in self.services for turn, pod in one.members.items()}
        return Counter(pod.node_name for pod in relatives.values())

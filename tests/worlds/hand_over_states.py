"""The states of the model of hand-overs (`hand_over_model.py`), without what no step will read, and the search through all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from scheduler_core.offers.outstanding_offer import ObservedPod
from tests.worlds import hand_over_machines as machines
from tests.worlds.hand_over_machines import DISK, NO_OFFERS, PODS, SIZES

# The faults that may happen once each.
KILL: Final = 1
PAUSE: Final = 2
LOSE: Final = 4
_NONE: Final = (None,) * len(SIZES)


class Process(NamedTuple):
    """What a process knows: the bits of the pods that it has seen bound and placed, and the disks that it answered."""

    ledger: int = NO_OFFERS
    adopted: bool = False
    bound: int = 0
    placed: int = 0
    answered: tuple[int | None, ...] = _NONE


class Placed(NamedTuple):
    """A pod's placement: asked of a process, answered and not stored yet, or stored."""

    stage: str
    disk: int
    process: int = -1


_DONE: Final = Placed("stored", 0)


class State(NamedTuple):
    """Everything. `decided` is kube-scheduler's choice, `bound` are the pods that the API server shows as bound. `unled` are the nodes with
    a placement that was reviewed without a leader: its offers are not promised there. `unguarded` are those with one that no process
    reviewed, or that no plan suited: nothing is promised there. `faults` may still happen.
    """

    election: int
    faults: int
    processes: tuple[Process, Process] = (Process(), Process())
    record: int = 0
    decided: tuple[int | None, ...] = _NONE
    bound: int = 0
    placed: tuple[Placed | None, ...] = _NONE
    unled: int = 0
    unguarded: int = 0
    dead: int = 0
    paused: int = 0

    def with_process(self, number: int, **changes: Any) -> State:
        processes = list(self.processes)
        processes[number] = processes[number]._replace(**changes)
        return self._replace(processes=(processes[0], processes[1]))

    def place(self, pod: int, placed: Placed | None) -> State:
        return self._replace(placed=(*self.placed[:pod], placed, *self.placed[pod + 1 :]))

    def has_stage(self, stage: str) -> bool:
        return any(placed is not None and placed.stage == stage for placed in self.placed)


Step = tuple[str, State]


def normal(state: State, *, standby_is_asked: bool) -> State:
    """The state without what no step will read."""
    for pod, node in enumerate(state.decided):
        if node is not None and state.placed[pod] != _DONE and _is_over(state, node):
            state = _finish(state, pod, node)
    if state.dead:
        state = state._replace(election=machines.without(state.election, state.dead))
    settled = all(process.adopted or state.dead >> number & 1 for number, process in enumerate(state.processes))
    unread = not (standby_is_asked or state.faults or state.dead or state.paused)
    if state.record and (settled or unread):
        state = state._replace(record=0)
    return state


def _is_over(state: State, node: int) -> bool:
    """Whether nothing can go wrong on a node any more: nothing is promised there, or any place of what is decided suits all."""
    sizes = sum(SIZES[pod] for pod in PODS if state.decided[pod] == node)
    return bool(state.unguarded >> node & 1 or (None not in state.decided and sizes <= DISK))


def _finish(state: State, pod: int, node: int) -> State:
    state = state.place(pod, _DONE)._replace(bound=state.bound | 1 << pod)
    for number, process in enumerate(state.processes):
        answered = (*process.answered[:pod], None, *process.answered[pod + 1 :])
        state = state.with_process(number, answered=answered)
        if process.adopted:
            seen = ObservedPod(str(pod), node_name=str(node))
            ledger = machines.step_ledger(process.ledger, seen)
            bits = {"bound": process.bound | 1 << pod, "placed": process.placed | 1 << pod}
            state = state.with_process(number, ledger=ledger, **bits)
    return state


def explore(
    start: State, steps: Callable[[State], Iterable[Step]], violations: Callable[[State], Iterable[str]]
) -> tuple[int, list[str]]:
    """Returns how many states there are, and the shortest way to one that violates something; [] if none does."""
    origins: dict[State, tuple[State | None, str]] = {start: (None, "start")}
    level = [start]
    while level:
        following: list[State] = []
        for state in level:
            for problem in violations(state):
                way = [problem]
                at: State | None = state
                while at is not None:
                    at, label = origins[at]
                    way.append(label)
                return len(origins), way[::-1]
            for label, after in steps(state):
                if after not in origins:
                    origins[after] = (state, label)
                    following.append(after)
        level = following
    return len(origins), []

"""A model of leader, standby, Lease, offers, hand-over record, reviews of placements and Longhorn's late writes, and its exhaustive explorer.

Two processes, three pods with one volume each (2, 2 and 4 Gi), two nodes of two disks (4 Gi each). The product's own state machines decide
(`hand_over_machines.py`): the election, the ledger, the record, the guard. kube-scheduler, Longhorn, the watches and the order in which the
app calls the machines are the model's. A transition is one step of one of them; `violations` says what must hold in every state.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal, NamedTuple, Self

from scheduler_core.offers.ledger import offer_width
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered
from tests.worlds import hand_over_machines as machines
from tests.worlds.hand_over_machines import DISK, NO_OFFERS, PAIR, PODS, SIZES, Known

# The faults that may happen once each.
KILL = 1
PAUSE = 2
LOSE = 4
_NONE = (None,) * len(SIZES)


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


_DONE = Placed("stored", 0)


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

    def with_process(self, number: int, **changes: Any) -> Self:
        processes = list(self.processes)
        processes[number] = processes[number]._replace(**changes)
        return self._replace(processes=(processes[0], processes[1]))

    def place(self, pod: int, placed: Placed | None) -> Self:
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


@dataclass(frozen=True)
class Design:
    """What a process does; a test breaks one of these on purpose."""

    # Which process API servers ask first about a placement: the "leader", or "any".
    reviewers: Literal["leader", "any"] = "leader"
    standby: bool = True  # whether they ask the other process if the first does not answer
    hangs_up: bool = True  # a process that leads no more ends the connections of API servers
    # A review of a process that does not lead reads the node's replicas as the API server has them, not only as a watch has shown them.
    reads: bool = True
    leader_reads: bool = True  # a review of the leader does so, too
    stored_first: bool = True  # another process is asked about a node only once what one answered about it is stored
    # A successor without a final record waits until what the previous leader answered is visible as decisions.
    waits: bool = True
    restores: bool = True  # a successor restores the offers of a record
    fenced: bool = True  # a process answers only while its fence is open
    times_out: bool = True  # the API server gives up a review without an answer
    remembers: bool = True  # a review counts what its process answered before and no watch has shown


class Model:
    """The transitions of one design, and what must hold."""

    def __init__(self, design: Design, faults: int) -> None:
        self.design = design
        self.start = State(machines.settled_election(), faults).with_process(0, adopted=True)

    def explore(self) -> tuple[int, list[str]]:
        """Returns how many states there are, and the shortest way to one in which something does not hold; [] if there is none."""
        return explore(self.start, self._normal_steps, self.violations)

    def _normal_steps(self, state: State) -> Iterator[Step]:
        asked = self.design.reviewers == "any"
        for label, after in self.steps(state):
            yield label, normal(after, standby_is_asked=asked)

    def steps(self, state: State) -> Iterator[Step]:
        """Every step that may come next; none once every volume is stored."""
        if all(placed is not None and placed.stage == "stored" for placed in state.placed):
            return
        yield from self._ask(state)
        for pod in PODS:
            yield from self._place(state, pod)
        for number in PAIR:
            if not state.dead >> number & 1:
                yield from self._run(state, number)
        # A review is answered or given up within a second, and what was answered is stored or refused at once.
        if state.has_stage("asked") or state.has_stage("answered"):
            return
        silent = state.dead | state.paused
        election = machines.tick(state.election, silent)
        # While a process stands still, the moment when its fence is open for the last time is left out.
        election = machines.tick(election, silent) if state.paused else election
        yield "time passes", self._after_election(state, election)
        if state.faults & LOSE:
            rest = state._replace(faults=state.faults & ~LOSE)
            for number, lost in product(PAIR, ("request", "answer")):
                if not silent >> number & 1:
                    after = machines.tick(state.election, silent, number, lost)
                    yield f"time passes, {number} loses a {lost}", self._after_election(rest, after)

    def _after_election(self, state: State, election: int) -> State:
        """A process that no longer leads drops what belongs to the lead; a paused one cannot."""
        state = state._replace(election=election)
        for number in PAIR:
            if not self._leads(state, number) and not state.paused >> number & 1:
                state = state.with_process(number, ledger=NO_OFFERS, adopted=False, bound=0, placed=0)
        return state

    def _leads(self, state: State, number: int) -> bool:
        return machines.leaders(state.election)[number] or (not self.design.fenced and state.processes[number].adopted)

    def _answers(self, state: State, number: int) -> bool:
        """Whether a process may answer kube-scheduler now."""
        awake = not (state.dead | state.paused) >> number & 1
        return awake and state.processes[number].adopted and self._leads(state, number)

    def known(self, state: State, number: int, node: int, bound: int, *, reads: bool) -> tuple[Known, ...]:
        """What a process that has seen these pods bound knows of each pod on a node; `reads`: and reads the replicas
        that are stored. A process that does not lead has the record of offers.
        """
        process = state.processes[number]
        offered = machines.offered_nodes(process.ledger if process.adopted else machines.restore(state.record, 0))
        known: list[Known] = []
        for pod, placed in enumerate(state.placed):
            here = state.decided[pod] == node
            base = ("bound" if here else "") if bound >> pod & 1 else "offer" if node in offered[pod] else ""
            visible = here and placed is not None and placed.stage == "stored" and (reads or process.placed >> pod & 1)
            shown = placed.disk if placed is not None and visible else None
            answered = process.answered[pod] if here and shown is None and self.design.remembers else None
            known.append(Known(base, shown, answered))
        return tuple(known)

    def _fits(self, state: State, number: int, pod: int, node: int) -> bool:
        loads = [0, 0]
        coming = [pod]
        known = self.known(state, number, node, state.processes[number].bound, reads=False)
        for other, fact in enumerate(known):
            disk = fact.shown if fact.shown is not None else fact.answered
            if disk is not None:
                loads[disk] += SIZES[other]
            elif other != pod and fact.base:
                coming.append(other)
        return machines.packs(coming, loads)

    def _ask(self, state: State) -> Iterator[Step]:
        """kube-scheduler asks about the next pod, and decides for one of the nodes of the answer."""
        pod = next((pod for pod in PODS if state.decided[pod] is None), None)
        for number in PAIR if pod is not None else ():
            if pod is None or not self._answers(state, number):
                continue
            guarded = [node for node in PAIR if not (state.unguarded | state.unled) >> node & 1]
            fitting = [node for node in guarded if self._fits(state, number, pod, node)]
            ledger = state.processes[number].ledger
            competing = machines.LEDGERS.values[ledger].competing_offers(str(pod))
            for nodes in combinations(fitting, offer_width(len(fitting), competing)) if fitting else ():
                offered = Offered(ObservedPod(str(pod)), frozenset(map(str, nodes)))
                late = state.with_process(number, ledger=machines.step_ledger(ledger, offered))
                # A record that is written later is written here, if nothing happens to the leader before; it lacks one offer at most.
                choices = (self._write_record(late, number), late)
                for after in choices[:1] if self._lacks_an_offer(state, number) else choices:
                    if state.faults & LOSE:
                        yield f"{number} answers {pod}: {nodes}, lost", after._replace(faults=state.faults & ~LOSE)
                    # The nodes are alike until one is chosen.
                    for node in nodes if pod else nodes[:1]:
                        decided = (*state.decided[:pod], node, *state.decided[pod + 1 :])
                        yield f"{number} answers {pod}: {nodes}, decided {node}", after._replace(decided=decided)

    def _lacks_an_offer(self, state: State, number: int) -> bool:
        ledger = state.processes[number].ledger
        recorded = machines.offered_nodes(machines.restore(state.record, state.processes[number].bound))
        return any(nodes and not recorded[pod] for pod, nodes in enumerate(machines.offered_nodes(ledger)))

    def _write_record(self, state: State, number: int, *, final: bool = False) -> State:
        record = machines.encode(state.processes[number].ledger, state.election, number, final=final)
        return state._replace(record=record)

    def _place(self, state: State, pod: int) -> Iterator[Step]:
        """kube-scheduler binds a pod; Longhorn places its volume, on any disk: its figures are late."""
        placed = state.placed[pod]
        node = state.decided[pod]
        if node is None:
            return
        if not state.bound >> pod & 1:
            if any(state.decided[other] is not None and not state.bound >> other & 1 for other in range(pod)):
                return  # in the order of the answers
            yield f"{pod} is bound", state._replace(bound=state.bound | 1 << pod)
        elif placed is None:
            here = [state.placed[other] for other in PODS if state.decided[other] == node]
            # The disks are alike until one is used.
            for disk in PAIR if any(here) else (0,):
                yield from self._review(state, pod, disk)
        elif placed.stage == "asked":
            yield from self._end_review(state, pod, placed)
        elif placed.stage == "answered":
            yield f"{pod} is stored on {placed.disk}", state.place(pod, Placed("stored", placed.disk))
            if state.faults & LOSE:
                yield f"{pod} is refused", state.place(pod, None)._replace(faults=state.faults & ~LOSE)

    def _end_review(self, state: State, pod: int, asked: Placed) -> Iterator[Step]:
        """The process that was paused when it was asked answers in time, or too late."""
        if not (state.dead | state.paused) >> asked.process & 1:
            yield from self._decide(state, pod, asked.disk, asked.process)
        elif self.design.times_out:
            yield from self._second(state, pod, asked.disk, asked.process)

    def _first(self, state: State) -> Iterator[int]:
        """The process that API servers call first: the leader, or where they keep their connections one that was it."""
        leader = next((each for each in PAIR if self._answers(state, each)), None)
        for number in PAIR:
            kept = not self.design.hangs_up and machines.has_led(state.election, number)
            if leader in {None, number} or self.design.reviewers == "any" or kept:
                yield number

    def _review(self, state: State, pod: int, disk: int) -> Iterator[Step]:
        for number in self._first(state):
            if state.paused >> number & 1:
                asked = state.place(pod, Placed("asked", disk, number))
                if not state.has_stage("asked"):
                    unled = state.unled | 1 << (state.decided[pod] or 0)
                    yield f"{number} is asked to review {pod}", asked._replace(unled=unled)
            elif state.dead >> number & 1:
                yield from self._second(state, pod, disk, number)
            else:
                yield from self._decide(state, pod, disk, number)
                for label, after in self._decide(state, pod, disk, number) if state.faults & LOSE else ():
                    lost = after.place(pod, None)._replace(unled=state.unled, faults=state.faults & ~LOSE)
                    for then, last in self._second(lost, pod, disk, number):
                        yield f"{label}, lost; {then}", last

    def _second(self, state: State, pod: int, disk: int, first: int) -> Iterator[Step]:
        """The first call brought no answer: API servers call the other process, or write what Longhorn wants."""
        node = 1 << (state.decided[pod] or 0)
        if self.design.standby and not (state.dead | state.paused) >> (1 - first) & 1:
            yield from self._decide(state._replace(unled=state.unled | node), pod, disk, 1 - first)
        else:
            unreviewed = state.place(pod, Placed("answered", disk, first))
            yield f"{pod} is not reviewed", unreviewed._replace(unguarded=state.unguarded | node)

    def _decide(self, state: State, pod: int, wanted: int, number: int) -> Iterator[Step]:
        node = state.decided[pod] or 0
        here = [placed for other, placed in enumerate(state.placed) if state.decided[other] == node and placed]
        if self.design.stored_first and any(each.stage == "answered" and each.process != number for each in here):
            return
        unled = state.unled | (0 if any(self._answers(state, each) for each in PAIR) else 1 << node)
        reads = self.design.leader_reads if state.processes[number].adopted else self.design.reads
        known = (self.known(state, number, node, seen, reads=reads) for seen in self._shown(state, number))
        for disk, planned in {machines.review(pod, wanted, facts) for facts in known}:
            answered = (*state.processes[number].answered[:pod], disk, *state.processes[number].answered[pod + 1 :])
            after = state.with_process(number, answered=answered).place(pod, Placed("answered", disk, number))
            unguarded = state.unguarded | (0 if planned else 1 << node)
            yield f"{number} reviews {pod}: {wanted} -> {disk}", after._replace(unled=unled, unguarded=unguarded)

    def _shown(self, state: State, number: int) -> set[int]:
        """The pods that a process may have seen bound: of one that does not lead, any of the first."""
        process = state.processes[number]
        earlier = {state.bound & ((1 << count) - 1) for count in range(len(SIZES) + 1)}
        return {process.bound} if process.adopted else earlier

    def _run(self, state: State, number: int) -> Iterator[Step]:
        """What a live process does by itself, and what happens to it."""
        bit = 1 << number
        process = state.processes[number]
        if state.paused & bit:
            yield f"{number} goes on", self._after_election(state._replace(paused=0), state.election)
        else:
            yield from self._watch(state, number)
            if self._leads(state, number) and not process.adopted:
                yield from self._adopt(state, number)
            if state.faults & PAUSE:
                yield f"{number} is paused", state._replace(paused=bit, faults=state.faults & ~PAUSE)
        if state.faults & KILL and not state.dead:
            gone = state._replace(dead=bit, paused=state.paused & ~bit, faults=state.faults & ~KILL)
            gone = gone.with_process(number, **Process()._asdict())
            yield f"{number} is killed", gone
            if self._answers(state, number):
                record = self._write_record(state, number, final=True).record
                released = machines.release(state.election, number)
                yield f"{number} drains", gone._replace(record=record, election=released)

    def _watch(self, state: State, number: int) -> Iterator[Step]:
        process = state.processes[number]
        if not process.adopted:
            return  # it catches up when it adopts; a review before that sees any of what was shown
        if process.bound != state.bound:
            new = (pod for pod in PODS if (state.bound & ~process.bound) >> pod & 1)
            events = (ObservedPod(str(pod), node_name=str(state.decided[pod])) for pod in new)
            ledger = machines.step_ledger(process.ledger, *events)
            yield f"{number} sees pods", state.with_process(number, bound=state.bound, ledger=ledger)
        placed, answered = self._stored(state, number)
        if process.placed != placed:
            yield f"{number} sees replicas", state.with_process(number, placed=placed, answered=answered)

    def _stored(self, state: State, number: int) -> tuple[int, tuple[int | None, ...]]:
        stored = [placed is not None and placed.stage == "stored" for placed in state.placed]
        answered = tuple(None if stored[pod] else state.processes[number].answered[pod] for pod in PODS)
        return sum(1 << pod for pod in PODS if stored[pod]), answered

    def _adopt(self, state: State, number: int) -> Iterator[Step]:
        """A new leader has caught up with everything that happened before, and restores what the record says."""
        usable, final = machines.readable(state.record, state.election, number)
        visible = all(state.decided[pod] is None or state.bound >> pod & 1 for pod in PODS)
        if self.design.waits and not (usable and final) and not visible:
            return
        ledger = machines.restore(state.record, state.bound) if usable and self.design.restores else NO_OFFERS
        state = state.with_process(number, adopted=True, ledger=ledger, bound=state.bound)
        placed, answered = self._stored(state, number)
        yield f"{number} adopts", state.with_process(number, placed=placed, answered=answered)

    def violations(self, state: State) -> Iterator[str]:
        """What does not hold."""
        if sum(self._answers(state, number) for number in PAIR) > 1:
            yield "two processes answer"
        for number in PAIR:
            process = state.processes[number]
            for pod, node in enumerate(state.decided) if self._answers(state, number) else ():
                offered = machines.offered_nodes(process.ledger)[pod]
                if node is not None and not process.bound >> pod & 1 and node not in offered:
                    yield f"{number} forgot pod {pod}"
        for node in PAIR:
            loads = [0, 0]
            coming = []
            for pod in PODS:
                placed = state.placed[pod] if state.decided[pod] == node else None
                if placed is not None and placed.stage != "asked":
                    loads[placed.disk] += SIZES[pod]
                elif state.decided[pod] == node and not state.unled >> node & 1:
                    coming.append(pod)
            if not state.unguarded >> node & 1 and not machines.packs(coming, loads):
                yield f"two plans for the bytes of node {node}: {loads} and pods {coming}"
        for pod, placed in enumerate(state.placed if not state.has_stage("answered") else ()):
            if placed is not None and placed.stage == "asked" and not list(self._end_review(state, pod, placed)):
                yield f"the review of pod {pod} never ends"

"""Elections in a world where everything goes wrong: at no time may two candidates answer kube-scheduler. What goes wrong is listed in
tests/worlds/election.py.
"""

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from tests.worlds.election import TIMING, ElectionWorld, Process, election_world

CANDIDATES = 3

clock_lists = st.lists(
    st.tuples(st.sampled_from([0.99, 1.0, 1.01]), st.sampled_from([0.0, 1e3, 1e7])),
    min_size=CANDIDATES,
    max_size=CANDIDATES + 2,
)
periods = st.sampled_from([0.01, 0.3, 0.5, 1.0, 2.0, 4.9, 5.2, 9.8, 10.1, 14.8, 15.2, 25.0])
indexes = st.integers(0, 99)


class Elections(RuleBasedStateMachine):
    """Searches for a short sequence of moments that breaks an assertion."""

    world: ElectionWorld

    @initialize(clocks=clock_lists, settled=st.booleans())
    def begin(self, clocks: list[tuple[float, float]], *, settled: bool) -> None:
        self.world = election_world(clocks)
        if settled:
            self.world.run(20.0)

    def process(self, index: int) -> Process:
        return self.world.processes[index % len(self.world.processes)]

    @rule(seconds=periods)
    def wait(self, seconds: float) -> None:
        """Time passes in which no process does anything."""
        self.world.wait(seconds)

    @rule(seconds=periods, jitter=st.sampled_from([0.0, 0.5, 0.99]))
    def run(self, seconds: float, jitter: float) -> None:
        """Time passes in which every running process makes its calls."""
        self.world.jitter = jitter
        self.world.run(seconds)

    @rule(index=indexes)
    def send(self, index: int) -> None:
        self.world.send(self.process(index))

    @rule(index=indexes)
    def apply(self, index: int) -> None:
        """A call is applied and not answered yet."""
        self.world.apply(self.process(index).pending)

    @rule(index=indexes)
    def answer(self, index: int) -> None:
        self.world.answer(self.process(index))

    @rule(index=indexes)
    def make_call(self, index: int) -> None:
        """A call is sent, applied and answered in no time."""
        self.world.make_call(self.process(index))

    @rule(index=indexes)
    def time_out(self, index: int) -> None:
        """A call's answer is lost, or the call is late."""
        self.world.time_out(self.process(index))

    @precondition(lambda self: self.world.abandoned)
    @rule(index=indexes)
    def apply_abandoned(self, index: int) -> None:
        self.world.apply_abandoned(index)

    @rule(index=indexes)
    def stop_or_continue(self, index: int) -> None:
        """A process gets SIGSTOP or SIGCONT."""
        self.world.stop_or_continue(self.process(index))

    @rule(index=indexes)
    def restart(self, index: int) -> None:
        """A new process without memory replaces another."""
        self.world.restart(self.process(index))

    @rule(index=indexes)
    def toggle(self, index: int) -> None:
        """A process is disabled, which also releases, or enabled."""
        self.world.toggle(self.process(index))

    @rule()
    def delete_lease(self) -> None:
        self.world.server.write(None)

    @rule(holder=st.sampled_from(["", "stranger", *(f"candidate-{number}" for number in range(CANDIDATES))]))
    def edit_holder(self, holder: str) -> None:
        """A user names a different holder, one of the candidates, or none."""
        self.world.edit_lease(holder=holder)

    @rule(duration=st.sampled_from([0, 1, 2, 15, 30, 2**31 - 1]))
    def edit_duration(self, duration: int) -> None:
        self.world.edit_lease(duration=duration)

    @rule()
    def touch_lease(self) -> None:
        """A user edits nothing that counts, for example a label."""
        self.world.edit_lease()

    @precondition(lambda self: self.world.server.history)
    @rule(index=indexes)
    def restore_lease(self, index: int) -> None:
        """A user restores an older content."""
        self.world.restore_lease(index)

    @invariant()
    def has_at_most_one_leader(self) -> None:
        """At most one process may answer kube-scheduler."""
        if hasattr(self, "world"):
            assert len(self.world.leaders()) <= 1, self.world.leaders()

    def teardown(self) -> None:
        """Once nothing goes wrong any more, one process leads."""
        if hasattr(self, "world"):
            self.world.assert_one_leader_emerges()


TestElections = Elections.TestCase
TestElections.settings = examples(75, steps=40)

Moment = Callable[[ElectionWorld, Process, Random], object]
MOMENTS: dict[str, Moment] = {
    "wait": lambda world, _, random: world.wait(random.choice([0.01, 0.3, 0.5, 1.0, 2.0, 4.9, 9.8, 14.8])),
    "run": lambda world, _, random: world.run(random.choice([0.25, 0.5, 1.0, 3.0, 16.0])),
    "send": lambda world, process, _: world.send(process),
    "apply": lambda world, process, _: world.apply(process.pending),
    "answer": lambda world, process, _: world.answer(process),
    "make a call": lambda world, process, _: world.make_call(process),
    "time out": lambda world, process, _: world.time_out(process),
    "apply an abandoned call": lambda world, _, random: world.apply_abandoned(random.randrange(100)),
    "stop or continue": lambda world, process, _: world.stop_or_continue(process),
    "restart": lambda world, process, _: world.restart(process),
    "enable or disable": lambda world, process, _: world.toggle(process),
    "delete the Lease": lambda world, _, _random: world.server.write(None),
    "edit the holder": lambda world, process, random: world.edit_lease(
        holder=random.choice(["", "stranger", process.candidate.identity])
    ),
    "edit the duration": lambda world, _, random: world.edit_lease(
        duration=random.choice([0, 1, 2, 15, 30, 2**31 - 1])
    ),
    "touch the Lease": lambda world, _, _random: world.edit_lease(),
    "restore the Lease": lambda world, _, random: world.restore_lease(random.randrange(4)),
}


@examples(75)
@given(clock_lists, st.integers(0, 2**32))
def test_long_random_histories_never_have_two_leaders(clocks: list[tuple[float, float]], seed: int) -> None:
    """Each history has its own mixture of frequent and rare moments, so that rare orders occur."""
    random = Random(seed)  # noqa: S311 # a reproducible history
    world = election_world(clocks)
    world.run(17.0)
    weights = [random.expovariate(1) ** 2 for _ in MOMENTS]
    for moment in random.choices(list(MOMENTS), weights, k=400):
        world.jitter = random.random()
        MOMENTS[moment](world, random.choice(world.processes), random)
        assert len(world.leaders()) <= 1, (moment, world.leaders())
    world.assert_one_leader_emerges()


@examples(30)
@given(clock_lists)
def test_a_released_lease_is_taken_within_a_second(clocks: list[tuple[float, float]]) -> None:
    world = election_world(clocks)
    world.run(17.0)
    [leader] = world.leading_processes()
    world.set_competing(leader, competing=False)
    assert world.leaders() == []
    world.run(1.0)
    [successor] = world.leaders()
    assert successor != leader.candidate.identity


@examples(30)
@given(clock_lists)
def test_a_stopped_leader_is_replaced_within_the_lease_duration(clocks: list[tuple[float, float]]) -> None:
    """Counted from its last renewal, plus the followers' period."""
    world = election_world(clocks)
    world.run(17.0)
    [leader] = world.leading_processes()
    leader.stopped = True
    world.run(1.02 * TIMING.lease_duration + 2 * TIMING.follow_period)
    [successor] = world.leaders()
    assert successor != leader.candidate.identity

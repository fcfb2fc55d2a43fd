"""Elections in a world where everything goes wrong: at no time may two candidates answer kube-scheduler. What goes wrong is listed in
tests/worlds/election.py.
"""

from collections.abc import Callable, Iterable
from random import Random

from hypothesis import given, strategies as st

from tests.examples import examples
from tests.worlds.election import TIMING, ElectionWorld, Process, election_world

CANDIDATES = 3

clock_lists = st.lists(
    st.tuples(st.sampled_from([0.99, 1.0, 1.01]), st.sampled_from([0.0, 1e3, 1e7])),
    min_size=CANDIDATES,
    max_size=CANDIDATES + 2,
)
PERIODS = (0.01, 0.3, 0.5, 1.0, 2.0, 4.9, 5.2, 9.8, 10.1, 14.8, 15.2, 25.0)
HOLDERS = ("", "stranger", *(f"candidate-{number}" for number in range(CANDIDATES)))
Moment = Callable[[ElectionWorld, Process, Random], object]
MOMENTS: dict[str, Moment] = {
    # No process does anything; while the world runs, each one makes its calls.
    "wait": lambda world, _, random: world.wait(random.choice(PERIODS)),
    "run": lambda world, _, random: world.run(random.choice(PERIODS)),
    "send": lambda world, process, _: world.send(process),
    "apply": lambda world, process, _: world.apply(process.pending),
    "answer": lambda world, process, _: world.answer(process),
    "make a call": lambda world, process, _: world.make_call(process),
    # A call's answer is lost, or the call is late.
    "time out": lambda world, process, _: world.time_out(process),
    "apply an abandoned call": lambda world, _, random: world.apply_abandoned(random.randrange(100)),
    "stop or continue": lambda world, process, _: world.stop_or_continue(process),
    # A new process without memory replaces another.
    "restart": lambda world, process, _: world.restart(process),
    "enable or disable": lambda world, process, _: world.toggle(process),
    "delete the Lease": lambda world, _, _random: world.server.write(None),
    "edit the holder": lambda world, process, random: world.edit_lease(
        holder=random.choice([*HOLDERS, process.candidate.identity])
    ),
    "edit the duration": lambda world, _, random: world.edit_lease(
        duration=random.choice([0, 1, 2, 15, 30, 2**31 - 1])
    ),
    # A user edits nothing that counts, for example a label.
    "touch the Lease": lambda world, _, _random: world.edit_lease(),
    "restore the Lease": lambda world, _, random: world.restore_lease(random.randrange(4)),
}
# Some moments only, so that rare orders of few kinds occur.
moment_lists = st.lists(st.sampled_from(list(MOMENTS)), min_size=2, unique=True).flatmap(
    lambda names: st.lists(st.sampled_from(names), min_size=40, max_size=40)
)


def live_through(world: ElectionWorld, moments: Iterable[str], random: Random) -> None:
    """Asserts that at no moment two processes may answer kube-scheduler, and that one leads once nothing goes wrong any more."""
    for moment in moments:
        world.jitter = random.random()
        MOMENTS[moment](world, random.choice(world.processes), random)
        assert len(world.leaders()) <= 1, (moment, world.leaders())
    world.assert_one_leader_emerges()


@examples(150)
@given(clock_lists, st.booleans(), moment_lists, st.randoms(use_true_random=False))
def test_no_short_history_has_two_leaders(
    clocks: list[tuple[float, float]], settled: bool, moments: list[str], random: Random
) -> None:
    """It is made as simple as possible: a moment that does not matter becomes a short wait."""
    world = election_world(clocks)
    if settled:
        world.run(20.0)
    live_through(world, moments, random)


@examples(75)
@given(clock_lists, st.integers(0, 2**32))
def test_long_random_histories_never_have_two_leaders(clocks: list[tuple[float, float]], seed: int) -> None:
    """Each history has its own mixture of frequent and rare moments, so that rare orders occur."""
    random = Random(seed)  # noqa: S311 # a reproducible history
    world = election_world(clocks)
    world.run(17.0)
    weights = [random.expovariate(1) ** 2 for _ in MOMENTS]
    live_through(world, random.choices(list(MOMENTS), weights, k=400), random)


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

"""Rules from outside the package: loading them, and what happens when one fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from app.policy.file import PolicyFile, PolicyFileError
from app.policy.plugins import PREDICATES_GROUP, PluginThreads, load_plugins
from scheduler_core.cooperative import run_to_end
from scheduler_core.generic.cycle_state import UndecidableError
from scheduler_core.generic.plugin_rules import PluginError, Plugins, PredicatePlugin
from scheduler_core.generic.policy import parse_policy
from scheduler_core.generic.predicates import Check
from tests.worlds.policy_rules import decide, node, pod, state

EXAMPLE = Path(__file__).parents[3] / "examples" / "plugin"


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    """Ends the calls that hang."""
    event = threading.Event()
    yield event
    event.set()


def test_the_example_decides() -> None:
    """Its policy names both of its rules."""
    file = PolicyFile(str(EXAMPLE / "policy.json"), load_plugins([str(EXAMPLE / "max_pods.py")]))
    nodes = [node("full"), node("used"), node("empty")]
    pods = [pod("web-1", "full"), pod("web-2", "full"), pod("web-3", "used")]
    decision = decide(pod(), state(nodes, pods), file.policy)
    assert decision.node == "empty"
    assert decision.ranking.totals == {"empty": 10, "used": 5}
    assert [failure.text for failure in decision.failures["full"]] == ["as many pods as allowed"]


def test_an_installed_package_adds_its_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its entry points, which refer to a rule or to several."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    entry_point = EntryPoint("maxPods", "max_pods:PREDICATES", PREDICATES_GROUP)
    monkeypatch.setattr("app.policy.plugins.entry_points", lambda group: EntryPoints([entry_point]).select(group=group))
    assert list(load_plugins().predicates) == ["maxPods"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("PREDICATES = ()", "has neither PREDICATES nor PRIORITIES"),
        ("PREDICATES = [3]", "3 is not a predicate plugin"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_named(text: str, problem: str, tmp_path: Path) -> None:
    """The error says what is wrong with it."""
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(PluginError, match=problem):
        load_plugins([str(file)])


def test_a_module_that_does_not_exist_is_named() -> None:
    """As any other problem with it."""
    with pytest.raises(PluginError, match=r"plugin no\.such_module: cannot be loaded: ModuleNotFoundError"):
        load_plugins(["no.such_module"])


def test_a_wrong_argument_of_a_plugin_is_an_error_of_the_policy_file(tmp_path: Path) -> None:
    """It names entry, rule and field."""
    file = tmp_path / "policy.json"
    file.write_text('{"predicates": [{"name": "Few", "argument": {"maxPods": {"count": "3"}}}]}')
    with pytest.raises(
        PolicyFileError, match=r"predicates\[0\] \(Few\): argument: maxPods: count: Expected `int`, got `str`"
    ):
        PolicyFile(str(file), load_plugins([str(EXAMPLE / "max_pods.py")]))


def test_a_plugin_that_hangs_is_named_in_the_pods_error(ended: threading.Event) -> None:
    """The decision ends, and no node fits, because nothing was decided."""

    def hang(*_: object) -> Check:
        ended.wait(60)
        raise AssertionError("it was given up")

    plugins = Plugins.of([PredicatePlugin("Hangs", hang)], [], PluginThreads(0.1).run)
    policy = parse_policy(b'{"predicates": [{"name": "Hangs"}]}', plugins)
    decision = decide(pod(), state([node("a")]), policy)
    assert (decision.node, decision.error) == ("", "plugin rule Hangs did not answer within 0.1 s")


class Clock:
    """A clock that moves on by itself, a little at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        self.now += 0.01
        return self.now


@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 1), (55.0, 1), (65.0, 2)])
def test_a_rule_that_hung_is_not_called_for_a_minute(seconds: float, calls: int, ended: threading.Event) -> None:
    """Until then its pods get the error at once."""
    clock = Clock()
    threads = PluginThreads(0.1, clock)
    started: list[float] = []

    def hang() -> None:
        started.append(clock.now)
        ended.wait(60)

    with pytest.raises(UndecidableError, match="plugin rule slow did not answer"):
        run_to_end(threads.run("slow", hang))
    clock.now += seconds
    with pytest.raises(UndecidableError, match="plugin rule slow did not answer"):
        run_to_end(threads.run("slow", hang))
    assert len(started) == calls


def test_a_rule_that_answers_again_is_called_again(ended: threading.Event) -> None:
    """Other rules are called all the time."""
    clock = Clock()
    threads = PluginThreads(0.1, clock)
    with pytest.raises(UndecidableError):
        run_to_end(threads.run("slow", lambda: ended.wait(60)))
    assert run_to_end(threads.run("quick", lambda: 1)) == 1
    clock.now += 100
    assert run_to_end(threads.run("slow", lambda: 2)) == 2
    assert run_to_end(threads.run("slow", lambda: 3)) == 3


def test_not_even_an_exit_of_a_plugin_ends_the_program() -> None:
    """It is an error of the rule."""

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(UndecidableError, match="plugin rule Leaves failed: SystemExit: 3"):
        run_to_end(PluginThreads().run("Leaves", leave))


def test_other_tasks_run_while_a_plugin_computes(ended: threading.Event) -> None:
    """The computation pauses until the thread has ended."""
    computation = PluginThreads().run("Slow", lambda: ended.wait(60))
    for _ in range(3):
        assert next(computation) is None
    ended.set()
    assert run_to_end(computation)

"""Rules from outside the package: loading them, and what happens when one fails."""

import json
import sys
import threading
from collections.abc import Iterator
from functools import partial
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.policy import PREDICATES_GROUP, PluginThreads, PolicyFile, PolicyFileError, load_plugins
from scheduler_core.generic.cycle_state import UndecidableError
from scheduler_core.generic.plugin_rules import PluginError, Plugins, PredicatePlugin
from scheduler_core.generic.policy import parse_policy
from scheduler_core.generic.predicates import Check
from tests.worlds.awkward_plugin import UnreadableError, raising
from tests.worlds.decision_runners import run_with
from tests.worlds.policy_rules import decide, node, pod, state

EXAMPLE = Path(__file__).parents[3] / "examples" / "plugin"


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    """Ends the calls that hang."""
    event = threading.Event()
    yield event
    event.set()
    for thread in threading.enumerate():
        # What it logs is not the next test's.
        if thread.name.startswith("plugin "):
            thread.join(60)


def test_the_example_decides() -> None:
    file = PolicyFile(str(EXAMPLE / "policy.json"), load_plugins([str(EXAMPLE / "max_pods.py")]))
    nodes = [node("full"), node("used"), node("empty")]
    pods = [pod("web-1", "full"), pod("web-2", "full"), pod("web-3", "used")]
    decision = decide(pod(), state(nodes, pods), file.policy)
    assert decision.node == "empty"
    assert decision.ranking.totals == {"empty": 10, "used": 5}
    assert [failure.text for failure in decision.failures["full"]] == ["as many pods as allowed"]


def test_an_installed_package_adds_its_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    entry_point = EntryPoint("maxPods", "max_pods:PREDICATES", PREDICATES_GROUP)
    monkeypatch.setattr("app.policy.entry_points", lambda group: EntryPoints([entry_point]).select(group=group))
    assert list(load_plugins().predicates) == ["maxPods"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n1 / 0", "cannot be loaded: ZeroDivisionError: division by zero (line 2, column 1)"),
        ("import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3 (line 1, column 13)"),
        ("raise KeyboardInterrupt", "cannot be loaded: KeyboardInterrupt:  (line 1, column 1)"),
        ("raise ValueError('a\\nb')", r"cannot be loaded: ValueError: a\nb (line 1, column 1)"),
        ("def", "cannot be loaded: SyntaxError: invalid syntax (bad.py, line 1)"),
        (
            "def __getattr__(name):\n  return 1 / (name[0] != 'P')",
            "cannot be loaded: ZeroDivisionError: division by zero (line 2, column 10)",
        ),
        ("PREDICATES = ()", "cannot be loaded: it has neither PREDICATES nor PRIORITIES"),
        ("PREDICATES = [3]", "PREDICATES[0]: 3 is not a predicate plugin"),
        ("PREDICATES = 3", "PREDICATES must be a list of rules, not a int"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_named(text: str, problem: str, tmp_path: Path) -> None:
    """The error is one line, with the line and column where the file raises."""
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(PluginError) as refused:
        load_plugins([str(file)])
    assert str(refused.value) == f"plugin {file}: {problem}"


def test_a_module_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console script alone would look for it beside itself."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules_of_this_folder.py").write_text((EXAMPLE / "max_pods.py").read_text())
    assert list(load_plugins(["rules_of_this_folder"]).predicates) == ["maxPods"]


def test_a_file_hides_no_module_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "json.py"
    file.write_text((EXAMPLE / "max_pods.py").read_text())
    assert list(load_plugins([str(file)]).predicates) == ["maxPods"]
    assert sys.modules["json"] is json


def test_a_module_that_does_not_exist_is_named() -> None:
    with pytest.raises(PluginError, match=r"plugin no\.such_module: cannot be loaded: ModuleNotFoundError"):
        load_plugins(["no.such_module"])


def test_a_wrong_argument_of_a_plugin_is_an_error_of_the_policy_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"predicates": [\n{"name": "Few", "argument": {"maxPods": {"count": "3"}}}]}')
    with pytest.raises(PolicyFileError) as refused:
        PolicyFile(str(file), load_plugins([str(EXAMPLE / "max_pods.py")]))
    location = f"{file}: policy: predicates[0] (Few): argument: maxPods"
    assert str(refused.value) == f"{location}: count: Expected `int`, got `str` (line 2, column 51)"


@pytest.mark.anyio
@pytest.mark.parametrize("rule", ["raisingInit", "exitingInit"])
async def test_an_argument_that_raises_in_a_changed_file_changes_nothing(rule: str, tmp_path: Path) -> None:
    """The policy before stays, whatever the code of the argument's type raises."""
    file = tmp_path / "policy.json"
    file.write_text('{"predicates": [{"name": "HostName"}]}')
    policy_file = PolicyFile(str(file), load_plugins(["tests.worlds.awkward_plugin"]))
    before = policy_file.policy
    file.write_text(json.dumps({"predicates": [{"name": "Own", "argument": {rule: {"names": []}}}]}))
    await policy_file.reload()
    assert policy_file.policy is before
    assert policy_file.problem.startswith(f"{file}: policy: predicates[0] (Own): argument: {rule}: cannot be read: ")


def test_a_plugin_that_hangs_is_named_in_the_pods_error(ended: threading.Event) -> None:
    """The decision ends, and no node fits, because nothing was decided."""

    def hang(*_: object) -> Check:
        ended.wait(60)
        raise AssertionError("it was given up")

    plugins = Plugins(run=PluginThreads(0.1).run).add("plugin", [PredicatePlugin("Hangs", hang)], [])
    policy = parse_policy(b'{"predicates": [{"name": "Hangs"}]}', plugins)
    decision = decide(pod(), state([node("a")]), policy)
    assert (decision.node, decision.error) == ("", "plugin rule Hangs did not answer within 0.1 s")


class Clock:
    """A clock that moves on by itself, a little at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
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
        threads.run("slow", hang)
    clock.now += seconds
    with pytest.raises(UndecidableError, match="plugin rule slow did not answer"):
        threads.run("slow", hang)
    assert len(started) == calls


def test_a_rule_that_answers_again_is_called_again(ended: threading.Event) -> None:
    clock = Clock()
    threads = PluginThreads(0.1, clock)
    with pytest.raises(UndecidableError):
        threads.run("slow", lambda: ended.wait(60))
    assert threads.run("quick", lambda: 1) == 1
    clock.now += 100
    assert threads.run("slow", lambda: 2) == 2
    assert threads.run("slow", lambda: 3) == 3


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (UnreadableError(), "UnreadableError: it has no readable text"),
    ],
)
def test_nothing_that_a_plugin_raises_ends_the_program(error: BaseException, text: str) -> None:
    with pytest.raises(UndecidableError, match=f"^plugin rule Mine failed: {text}$"):
        PluginThreads().run("Mine", raising(error))


def test_a_traceback_is_logged_once_per_line_that_raises() -> None:
    def fail(error: Exception) -> None:
        if isinstance(error, KeyError):
            raise error
        raise error

    threads = PluginThreads()
    with capture_logs() as logs:
        for error in [KeyError("pod-1"), KeyError("pod-2"), ValueError("pod-3")]:
            with pytest.raises(UndecidableError, match=r"pod-\d"):
                threads.run("Mine", partial(fail, error))
    assert [entry["exception"].splitlines()[-1] for entry in logs] == ["KeyError: 'pod-1'", "ValueError: pod-3"]


def test_more_urgent_decisions_run_while_a_plugin_computes(ended: threading.Event) -> None:
    assert run_with(ended.set, lambda: PluginThreads().run("Slow", lambda: ended.wait(60)), after=3)

"""Rules from outside the package: loading them, and what happens when one fails."""

import json
import sys
from pathlib import Path

import pytest

from app.policy import PolicyFile, PolicyFileError, load_plugins
from scheduler_core.generic.plugin_rules import PluginError
from tests.worlds.policy_rules import decide, node, pod, state

EXAMPLE = Path(__file__).parents[3] / "examples" / "plugin"


def test_the_example_decides() -> None:
    file = PolicyFile(str(EXAMPLE / "policy.json"), load_plugins([str(EXAMPLE / "max_pods.py")]))
    nodes = [node("full"), node("used"), node("empty")]
    pods = [pod("web-1", "full"), pod("web-2", "full"), pod("web-3", "used")]
    decision = decide(pod(), state(nodes, pods), file.policy)
    assert decision.node == "empty"
    assert decision.ranking.totals == {"empty": 10, "used": 5}
    assert [failure.text for failure in decision.failures["full"]] == ["as many pods as allowed"]


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

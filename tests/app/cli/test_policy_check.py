"""`longhorn-extender policy check`: what is wrong with a policy file, and what its rules read."""

import json
from pathlib import Path

import pytest

from tests.core.generic.tables import POLICIES
from tests.worlds.command_line import Run


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.json")), ids=lambda path: path.name)
def test_every_example_can_be_used(run: Run, path: Path) -> None:
    result = run("policy", "check", str(path))
    assert (result.code, result.err) == (0, "")
    policy = json.loads(path.read_text())
    rows = [line for line in result.out.splitlines() if line.startswith(("predicate ", "priority "))]
    assert len(rows) == len(policy["predicates"]) + len(policy["priorities"])


def test_the_rules_of_a_plugin_are_listed(run: Run) -> None:
    example = POLICIES.parent / "plugin"
    command = ("policy", "check", str(example / "policy.json"))
    result = run(*command, "--plugin", str(example / "max_pods.py"), "-o", "json")
    answer = result.answer
    assert (result.code, answer["kinds"]) == (0, ["nodes", "pods", "services"])
    assert [entry["rule"] for entry in answer["predicates"]] == ["PodFitsResources", "maxPods"]
    assert run(*command).code == 2


def test_each_rule_is_listed_with_what_it_reads(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    zone = {"name": "Zone", "argument": {"labelsPresence": {"labels": ["zone"], "presence": True}}}
    priorities = [{"name": "SelectorSpreadPriority", "weight": 2}, {"name": "LonghornOrderSafe", "weight": 1}]
    file.write_text(json.dumps({"predicates": [zone, {"name": "HostName"}], "priorities": priorities}))
    result = run("policy", "check", str(file), "-o", "json")
    answer = result.answer
    assert result.code == 0
    assert answer["predicates"] == [
        {"name": "Zone", "rule": "labelsPresence", "reads": ["node metadata.labels"], "kinds": ["nodes"]},
        {"name": "HostName", "rule": "HostName", "reads": ["pod spec.nodeName"], "kinds": []},
    ]
    assert [(entry["name"], entry["weight"]) for entry in answer["priorities"]] == [
        ("SelectorSpreadPriority", 2),
        ("LonghornOrderSafe", 1),
    ]
    assert answer["kinds"] == ["nodes", "pods", "replicasets", "replicationcontrollers", "services", "statefulsets"]
    assert (answer["file"], answer["longhorn"], answer["warnings"]) == (str(file), True, [])


def test_without_a_command_the_help_is_printed(run: Run) -> None:
    """On standard error, as by the program itself."""
    result = run("policy")
    assert (result.code, result.out) == (2, "")
    assert "check" in result.err
    assert "Usage: longhorn-extender policy" in result.err


def test_warnings_are_no_errors(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text("null")
    result = run("policy", "check", str(file), "-o", "json")
    assert result.code == 0
    assert result.err.count("warning: ") == len(result.answer["warnings"]) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '{"predicates": [{"name": "GeneralPredicates"}]}',
            "predicates[0] (GeneralPredicates): no predicate has this name (PodFits",
        ),
        ('{"predicates": [],\n "Predicates": []}', "are one key, written twice (line 1, column 2; line 2, column 2)"),
        ('{"priorities": [{"name": "EqualPriority"}]}', "weight is missing"),
    ],
)
def test_a_file_that_cannot_be_used_ends_with_exit_code_2(run: Run, tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "policy.json"
    file.write_text(text)
    result = run("policy", "check", str(file))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"longhorn-extender: {file}: policy: ")
    assert problem in result.err
    assert "(line 1, column " in result.err
    assert result.err.count("\n") == 1

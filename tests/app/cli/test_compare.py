"""`longhorn-extender compare`: clusters, pods, outputs, exit codes and bad input."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.builders import flat
from tests.worlds.command_line import Run
from tests.worlds.predicted_clusters import growing_class, node, running, stateful_set

ROOT = Path(__file__).parents[3]
STRATEGIES = ["none", "proposal", "capacity", "guarded"]
GENERATED = ("compare", "--nodes", "3", "--pods", "6", "--orders", "2")


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """A snapshot file with a running pod.

    db-0 runs on a, and b has room for two more of its pods.
    """
    objects = flat(growing_class(), node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a"))
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return str(file)


def test_the_table_has_the_figures_and_the_time(run: Run) -> None:
    """Each strategy is a row or column of each table."""
    result = run(*GENERATED)
    lines = [line.split() for line in result.out.splitlines() if line]
    assert result.code == 0
    assert [line[0] for line in lines[1:5]] == STRATEGIES
    assert [line[0] for line in lines[6:10]] == STRATEGIES
    assert ["STEP", *STRATEGIES] in lines
    assert result.out.splitlines()[-1] == "6 pods on 3 nodes, in 2 orders: median (least to most)"


def test_json_has_stable_keys_and_few_samples(run: Run) -> None:
    """Its keys are those of docs/strategies.md.

    Every strategy has the same steps.
    """
    answer = json.loads(run(*GENERATED, "--lag", "300", "-o", "json").out)
    keys = "apiVersion kind nodes pods orders seed lag binding packing strategies notes"
    assert list(answer) == keys.split()
    assert (answer["kind"], answer["lag"], answer["binding"]) == ("StrategyComparison", 300, 10)
    names = "name description placed waiting stuck misplaced overbooked overbookedBytes lastPlacement reasons samples"
    assert [list(strategy) for strategy in answer["strategies"]] == [names.split()] * len(STRATEGIES)
    steps = [[sample["step"] for sample in strategy["samples"]] for strategy in answer["strategies"]]
    assert steps == [sorted(steps[0])] * len(STRATEGIES)
    assert 100 <= len(steps[0]) <= 101
    page = (ROOT / "docs/strategies.md").read_text()
    assert all(f"`{key}`" in page for key in (*keys.split()[2:], *names.split()))


def test_the_same_seed_gives_the_same_output(run: Run) -> None:
    """Also as YAML; another seed gives another one."""
    first, second, other = (run(*GENERATED, "--seed", seed, "-o", "yaml").out for seed in ("1", "1", "2"))
    assert first == second
    assert {**yaml.safe_load(first), "seed": 2} != yaml.safe_load(other)


def test_pods_of_a_file_and_of_a_workload_are_placed(run: Run, cluster: str, tmp_path: Path) -> None:
    """Pods of a file, of a StatefulSet, and generated ones are placed.

    Two are of the file, one more is of the StatefulSet in the snapshot, and one is generated.
    """
    file = tmp_path / "web.json"
    file.write_text(json.dumps(stateful_set("web", 2)))
    arguments = ("--snapshot", cluster, "--apply", str(file), "--scale", "sts/db=2", "--pods", "1", "--volumes", "1")
    answer = json.loads(run("compare", *arguments, "--orders", "1", "-o", "json").out)
    assert (answer["pods"], answer["nodes"]) == (4, 2)


def test_more_pods_than_there_is_room_for_wait(run: Run) -> None:
    """The table says why; the exit code is 0 all the same."""
    result = run("compare", "--nodes", "2", "--pods", "12", "--fill", "200", "--orders", "1")
    assert result.code == 0
    assert "capacity: " in result.out
    assert " pods wait in 1 order: " in result.out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--nodes", "3"), "no pod is to be placed; give --pods N, --apply FILE or --scale sts/NAME=N"),
        (("--nodes", "3", "--snapshot", "x.yaml"), "--snapshot and --nodes exclude each other"),
        (("--snapshot", "-", "--apply", "-"), "standard input (-) can be read only once"),
        (("--nodes", "3", "--scale", "sts/web=2"), "the generated cluster of 3 nodes: has no StatefulSet default/web"),
        (("--nodes", "0", "--pods", "1"), "Invalid value for '--nodes'"),
        (("--nodes", "3", "--pods", "1", "--lag", "-1"), "Invalid value for '--lag'"),
        (("--nodes", "3", "--apply", "/no/such/file"), "/no/such/file"),
    ],
)
def test_bad_input_ends_with_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], problem: str) -> None:
    """The line says what is wrong."""
    result = run("compare", *arguments)
    assert result.code == 2
    assert problem in result.err
    assert len(result.err.splitlines()) == 1


def test_the_page_shows_what_the_command_prints(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both examples in docs/strategies.md, line by line."""
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/strategies.md").read_text()
    examples = re.findall(r"```console\n\$ \.venv/bin/longhorn-extender (.*?)\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for command, shown in examples:
        assert run(*shlex.split(command)).out == shown

"""`longhorn-extender scheduler-config --merge`: a configuration that exists, with the extender in it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.worlds.command_line import Result, Run

ADDRESS = "http://10.43.12.34:9504"
HEAD = """\
# ours
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf} # on every node
"""
TOPOLVM = """\
# what we call
extenders:
  - urlPrefix: http://127.0.0.1:9251 # topolvm
    filterVerb: predicate
    # its resource
    managedResources:
      - name: topolvm.io/capacity
        ignoredByScheduler: true # always
"""
TAIL = """\
# last
profiles:
  - schedulerName: default-scheduler
# the end
"""
OWN = "managedResources: [{name: longhorn.io/scheduler-extender}]"


def merge(run: Run, file: Path, text: str, *options: str) -> Result:
    file.write_text(text)
    arguments = ["--platform", "kubeadm", "--url-prefix", ADDRESS, "--merge", str(file), *options]
    return run("scheduler-config", *arguments)


def wanted(run: Run, *options: str) -> Any:
    """What the command prints without a file to merge into."""
    arguments = ["--platform", "kubeadm", "--url-prefix", ADDRESS, *options]
    return yaml.safe_load(run("scheduler-config", *arguments).out)


@pytest.mark.parametrize("options", [(), ("--pods", "all")], ids=["requesting", "all"])
@pytest.mark.parametrize(
    ("text", "others"),
    [
        pytest.param(HEAD, 0, id="neither key"),
        pytest.param(HEAD.rstrip("\n"), 0, id="no newline at the end"),
        pytest.param(HEAD + TAIL, 0, id="profiles"),
        pytest.param(HEAD + TOPOLVM + TAIL, 1, id="another extender"),
        pytest.param(HEAD + "percentageOfNodesToScore: 50 # fast\n" + TOPOLVM, 1, id="a percentage"),
        pytest.param(HEAD + "percentageOfNodesToScore:\nextenders:\n" + TAIL, 0, id="no values"),
        pytest.param(HEAD + "extenders: [] # none yet\n" + TAIL, 0, id="an empty list"),
        pytest.param(HEAD + TOPOLVM + f"  - {{urlPrefix: http://old:1, {OWN}}}\n" + TAIL, 1, id="of another address"),
        pytest.param(HEAD + f"extenders:\n- urlPrefix: {ADDRESS}\n  weight: 1\n" + TAIL, 0, id="of this address"),
        pytest.param(HEAD + "extenders:\n- urlPrefix: |-\n    http://x\n" + TAIL, 1, id="a block of text"),
    ],
)
def test_every_other_line_stays(run: Run, tmp_path: Path, text: str, others: int, options: tuple[str, ...]) -> None:
    file = tmp_path / "config.yaml"
    result = merge(run, file, text, *options)
    assert result.code == 0, result.err
    merged = yaml.safe_load(result.out)
    expected = wanted(run, *options)
    assert merged["percentageOfNodesToScore"] == 100
    assert merged["extenders"][others:] == expected["extenders"]
    before = yaml.safe_load(text)
    assert merged == {**before, **{key: merged[key] for key in ("percentageOfNodesToScore", "extenders")}}
    kept = [line for line in text.splitlines() if "#" in line and "percentageOfNodesToScore" not in line]
    assert [line for line in result.out.splitlines() if "#" in line and "# fast" not in line] == [
        line.replace("[] ", " ") for line in kept
    ]
    assert ("# fast" in result.out) is ("# fast" in text)
    assert merge(run, file, result.out, *options).out == result.out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "expected one KubeSchedulerConfiguration", id="empty"),
        pytest.param("kind: Pod\n", "expected one KubeSchedulerConfiguration", id="another kind"),
        pytest.param(HEAD + "---\n" + HEAD, "expected one KubeSchedulerConfiguration", id="two documents"),
        pytest.param(HEAD + "a: [\n", "while parsing", id="no YAML"),
        pytest.param(
            HEAD.replace("/v1", "/v1beta3"), "apiVersion is kubescheduler.config.k8s.io/v1beta3", id="version"
        ),
        pytest.param(
            '{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}',
            "is written in braces",
            id="JSON",
        ),
        pytest.param(HEAD + "extenders: {a: 1}\n", "extenders is no list of extenders", id="no list"),
        pytest.param(HEAD + "extenders: [{urlPrefix: http://x}]\n", "cannot be merged as it is written", id="brackets"),
        pytest.param(
            HEAD + f"extenders:\n- {{{OWN}}}\n- urlPrefix: http://x\n- {{{OWN}}}\n",
            "cannot be merged as it is written",
            id="another extender in between",
        ),
        pytest.param(
            HEAD + "profiles:\n- percentageOfNodesToScore: 10\n",
            "profiles[0].percentageOfNodesToScore is 10",
            id="a profile's percentage",
        ),
    ],
)
def test_what_cannot_be_merged_is_one_line(run: Run, tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "config.yaml"
    result = merge(run, file, text)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"--merge {file}: " in result.err
    assert problem in result.err


def test_a_file_that_cannot_be_read_is_one_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(b"\xff")
    for path, problem in ((tmp_path / "absent", "No such file or directory"), (file, "is not UTF-8")):
        arguments = ["--platform", "kubeadm", "--url-prefix", ADDRESS, "--merge", str(path)]
        result = run("scheduler-config", *arguments)
        assert (result.code, result.out, result.err) == (2, "", f"longhorn-extender: --merge {path}: {problem}\n")

"""What is said to somebody who has just started the stack, and how ends of processes are told."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from devcluster import next_steps, prometheus
from devcluster.next_steps import StackFacts
from devcluster.watch import describe_end, was_ended_from_outside

FACTS = StackFacts(
    kubeconfig=Path("/c/kubeconfig"),
    kubectl=None,
    example=Path("examples/dev/statefulset.yaml"),
    address="127.0.0.1:1",
    leader=("extender-1", 42),
    others=["extender-2"],
    serve=["longhorn-extender", "serve"],
    simulator="http://127.0.0.1:2",
    prometheus="",
    logs=Path("/c/logs"),
)


def test_the_commands_to_type_are_there() -> None:
    """Credentials, a workload, how to watch it, the leader's view, and where the logs are."""
    said = next_steps.text(FACTS).splitlines()
    for line in (
        "  export KUBECONFIG=/c/kubeconfig",
        "  kubectl apply -f examples/dev/statefulset.yaml",
        "  kubectl get pods -o wide -w",
        "  curl -s http://127.0.0.1:2/status",
        "Logs: /c/logs",
    ):
        assert line in said
    assert any(line.startswith("  curl -s http://127.0.0.1:1/state") for line in said)
    assert any(line.startswith("  kill -9 42") for line in said)


def test_paths_can_be_pasted() -> None:
    """Whatever is in them."""
    said = next_steps.text(replace(FACTS, kubeconfig=Path("/a b/kubeconfig")))
    assert "export KUBECONFIG='/a b/kubeconfig'" in said


@pytest.mark.parametrize(
    ("changed", "present", "absent"),
    [
        ({"kubectl": Path("/built")}, 'export PATH="$PATH:/built"', "nothing"),
        ({"prometheus": "http://127.0.0.1:3"}, "Prometheus: http://127.0.0.1:3", "nothing"),
        ({"others": []}, "/state ", "kill -9"),
        ({"leader": None}, "  longhorn-extender serve", "/state "),
        ({"address": ""}, "Logs:", "extender, where"),
    ],
    ids=["no kubectl", "prometheus", "one candidate", "no candidate", "no extender"],
)
def test_only_what_is_there_is_talked_about(changed: dict[str, object], present: str, absent: str) -> None:
    """Each part by itself."""
    said = next_steps.text(replace(FACTS, **changed))  # type: ignore[arg-type]
    assert present in said
    assert absent not in said


def test_every_candidate_is_scraped_by_its_name() -> None:
    """And nothing else; there are no rules."""
    written = yaml.safe_load(prometheus.configuration("job", {"a": "h:1", "b": "h:2"}))
    assert set(written) == {"global", "scrape_configs"}
    assert [(it["targets"], it["labels"]) for it in written["scrape_configs"][0]["static_configs"]] == [
        (["h:1"], {"instance": "a"}),
        (["h:2"], {"instance": "b"}),
    ]


@pytest.mark.parametrize(
    ("code", "words", "by_somebody"),
    [
        (0, "ended with code 0", True),
        (1, "ended with code 1", False),
        (-signal.SIGKILL, "was ended by SIGKILL", True),
        (-signal.SIGTERM, "was ended by SIGTERM", True),
        (-signal.SIGSEGV, "was ended by SIGSEGV", False),
        (-200, "was ended by signal 200", False),
    ],
)
def test_an_end_is_told_in_words(code: int, words: str, by_somebody: bool) -> None:
    """A candidate that somebody ended is started again; anything else is a crash."""
    assert describe_end(code) == words
    assert was_ended_from_outside(code) is by_somebody

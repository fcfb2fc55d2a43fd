"""The text that a user reads once the stack has started."""

from pathlib import Path

import pytest

from devcluster import next_steps
from devcluster.next_steps import StackFacts
from scheduler_core.structs import replace

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


def test_paths_are_quoted_for_the_shell() -> None:
    text = next_steps.text(replace(FACTS, kubeconfig=Path("/a b/kubeconfig")))
    assert "export KUBECONFIG='/a b/kubeconfig'" in text


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
def test_the_text_mentions_only_what_exists(changed: dict[str, object], present: str, absent: str) -> None:
    text = next_steps.text(replace(FACTS, **changed))  # type: ignore[arg-type]
    assert present in text
    assert absent not in text

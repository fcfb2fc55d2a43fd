"""Questions as large as one may be: each is decided in turns that leave kube-scheduler's own calls time."""

import json
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import pytest

from app.api.extender_codec import MAX_CANDIDATES
from scheduler_core.volumes.resolve import MAX_VOLUMES_PER_NODE
from tests.worlds.abuse import MEMORY_LIMIT, AbusedService, regular_calls
from tests.worlds.service import db_pod

pytestmark = pytest.mark.e2e

# Several times what an idle processor needs (40 to 60 ms): an answer's JSON text is made in one turn.
TURN = 0.25
NAMES = [f"unknown-{number}" for number in range(MAX_CANDIDATES)]
VICTIMS: dict[str, Any] = {name: {"Pods": []} for name in NAMES}


def pod_with_many_volumes() -> dict[str, Any]:
    """As many volumes as a node can attach, each of a size of its own."""
    pod = db_pod()
    pod["spec"]["volumes"] = [
        {
            "name": f"data-{number}",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "spec": {"storageClassName": "longhorn", "resources": {"requests": {"storage": f"{number}Mi"}}}
                }
            },
        }
        for number in range(1, MAX_VOLUMES_PER_NODE + 1)
    ]
    return pod


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/filter", lambda: {"Pod": db_pod(), "NodeNames": NAMES}, id="filter: names"),
        pytest.param("/prioritize", lambda: {"Pod": db_pod(), "NodeNames": NAMES}, id="prioritize: names"),
        pytest.param("/preempt", lambda: {"Pod": db_pod(), "NodeNameToMetaVictims": VICTIMS}, id="preempt: names"),
        pytest.param("/explain", lambda: {"Pod": db_pod(), "NodeNames": NAMES}, id="explain: names"),
        pytest.param(
            "/filter", lambda: {"Pod": pod_with_many_volumes(), "NodeNames": ["node-1"]}, id="filter: volumes"
        ),
        pytest.param(
            "/explain", lambda: {"Pod": pod_with_many_volumes(), "NodeNames": ["node-1"]}, id="explain: volumes"
        ),
    ],
)
def test_the_largest_question_takes_short_turns(
    service: AbusedService, path: str, body: Callable[[], dict[str, Any]]
) -> None:
    """Memory stays within the limit, and other calls are answered meanwhile."""
    question = json.dumps(body())

    def ask() -> None:
        connection = HTTPConnection("127.0.0.1", service.port, timeout=60)
        with regular_calls(service) as calls:
            connection.request("POST", path, question)
            answer = connection.getresponse()
            answer.read()
        connection.close()
        assert answer.status == 200
        assert calls.problems == []
        assert calls.answered

    assert service.longest_turn(ask, TURN) < TURN
    assert service.peak_memory < MEMORY_LIMIT


def test_a_question_about_more_nodes_is_refused(service: AbusedService) -> None:
    """The answer says how many one request may name."""
    connection = HTTPConnection("127.0.0.1", service.port, timeout=60)
    connection.request("POST", "/filter", json.dumps({"Pod": db_pod(), "NodeNames": [*NAMES, "one-more"]}))
    answer = connection.getresponse()
    error = json.loads(answer.read())["error"]
    connection.close()
    assert (answer.status, error) == (400, "20001 nodes are asked about; one request may name 20000")

"""What is logged: one JSON object a line, with the pod and the decision, and nothing a pod keeps secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from app.decisions.evaluator import Scheduling
from app.decisions.state_source import FixedView
from app.extender.verbs import Verbs
from app.policy.in_force import PolicyInForce, PolicyVerbs
from app.runtime.logs import LogFormat, configure
from app.settings import Settings
from scheduler_core.cluster.view import View
from tests.builders import NOW, Object, pod, snapshot
from tests.worlds.service import application, asking, by_names, db_pod

pytestmark = pytest.mark.anyio

SENSITIVE = "hunter2"


@pytest.fixture(autouse=True)
def _logging_left_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    logging.getLogger("httpx").disabled = True
    yield
    logging.getLogger("httpx").disabled = False
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _secretive(raw_pod: Object) -> Object:
    """The pod with a secret wherever a pod may hold one."""
    raw_pod["metadata"]["annotations"] = {"token": SENSITIVE}
    raw_pod["spec"]["containers"] = [
        {"name": "db", "env": [{"name": "PASSWORD", "value": SENSITIVE}], "args": [SENSITIVE]}
    ]
    return raw_pod


class _Broken(Scheduling):
    """A scheduling with a defect."""

    async def filter(self, pod: Any, candidates: Any, reserved: Any = frozenset) -> Any:
        """Fails as a programming error would."""
        raise RuntimeError(f"{type(pod)}, {len(candidates)} nodes, {reserved}")


async def _logged(question: Object, capsys: pytest.CaptureFixture[str], *, broken: bool = False) -> str:
    app = application()
    if broken:
        state = app.state.extender
        scheduling = _Broken(FixedView(View.of(snapshot(), NOW)), Settings().options)
        verbs = Verbs(scheduling)
        policy = PolicyVerbs(verbs, scheduling, PolicyInForce())
        app.state.extender = replace(state, scheduling=scheduling, verbs=verbs, policy=policy)
    async with asking(app, raise_app_exceptions=False) as client:
        response = await client.post("/filter", json=question)
    if broken:
        assert (response.status_code, response.json()) == (500, {"error": "internal error, see the server's log"})
    return capsys.readouterr().out


async def test_a_decision_is_one_line_with_the_pod_and_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Who looks for a pod in the log finds how many nodes fit and why the others do not."""
    configure("json")
    (line,) = (await _logged(by_names(db_pod()), capsys)).splitlines()
    assert (
        json.loads(line).items()
        >= {
            "event": "filter",
            "level": "info",
            "pod": "default/db-0",
            "uid": "uid-db-0",
            "volumes": 1,
            "nodes": 4,
            "fits": 2,
            "reasons": {"has room for all local volumes": 2, "insufficient Longhorn storage": 2},
        }.items()
    )


@pytest.mark.parametrize(
    ("question", "event"),
    [
        pytest.param(by_names(pod("gone")), "filter refused", id="missing claim"),
        pytest.param({"Pod": db_pod()}, "refused request", id="malformed"),
    ],
)
async def test_a_problem_is_one_line_too(question: Object, event: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What could not be answered is logged with its error text."""
    configure("json")
    (line,) = (await _logged(question, capsys)).splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"]) == (event, "warning")
    assert entry["error"]


async def test_names_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A line break in a pod's name stays inside its JSON text."""
    configure("json")
    (line,) = (await _logged(by_names(db_pod(name='x\n{"event": "forged"}')), capsys)).splitlines()
    assert json.loads(line)["pod"] == 'default/x\n{"event": "forged"}'


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("broken", [pytest.param(False, id="decided"), pytest.param(True, id="failed")])
async def test_what_a_pod_keeps_secret_is_not_logged(
    log_format: LogFormat, broken: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither decisions nor tracebacks show environment, arguments or annotations of the pod."""
    configure(log_format)
    logged = await _logged(by_names(_secretive(db_pod())), capsys, broken=broken)
    assert ("RuntimeError" in logged) is broken
    assert logged
    assert SENSITIVE not in logged


async def test_a_quiet_level_leaves_decisions_out(capsys: pytest.CaptureFixture[str]) -> None:
    """--log-level warning logs problems only."""
    configure("json", "warning")
    assert await _logged(by_names(db_pod()), capsys) == ""

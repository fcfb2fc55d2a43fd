"""Mutated requests, snapshots and policies: each is answered or refused in one sentence, never with an error of the program.

`make soak` runs many more examples than `make check`: FUZZ_EXAMPLES says how many.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from app.bootstrap import create_app
from app.kube.snapshot_file import load_snapshot
from app.policy import PolicyFile
from app.settings import Settings
from scheduler_core.errors import CoreError
from tests.builders import NOW
from tests.worlds.mutation import mutated
from tests.worlds.service import application, by_names, by_nodes, db_pod, http_client, small_cluster

ROOT = Path(__file__).parents[2]
APPLICATION = application()
POLICIES = [json.loads(path.read_text()) for path in sorted((ROOT / "examples/policies").glob("*.json"))]
CLUSTER = {"apiVersion": "v1", "kind": "List", "items": small_cluster()}
EPHEMERAL = {"spec": {"storageClassName": "longhorn", "resources": {"requests": {"storage": "1Gi"}}}}
VICTIMS = {"node-1": {"Pods": [{"UID": "a"}], "NumPDBViolations": 1}, "node-2": {"Pods": []}}
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
pytestmark = pytest.mark.timeout(3600)


def _pod() -> Any:
    raw = db_pod(labels={"app": "db"})
    raw["spec"]["volumes"].append({"name": "scratch", "ephemeral": {"volumeClaimTemplate": EPHEMERAL}})
    return raw


def _bodies(path: str) -> list[Any]:
    if path == "/preempt":
        return [{"Pod": _pod(), "NodeNameToMetaVictims": VICTIMS}, {"Pod": _pod(), "NodeNameToVictims": VICTIMS}]
    return [by_names(_pod()), by_nodes(_pod())]


async def _post(app: Any, path: str, body: Any) -> tuple[int, Any]:
    async with http_client(app, raise_app_exceptions=False) as client:
        response = await client.post(path, content=json.dumps(body).encode(errors="surrogatepass"))
    return response.status_code, response.json()


@pytest.mark.parametrize("path", ["/filter", "/prioritize", "/preempt", "/explain"])
@fuzz
@given(data=st.data())
def test_a_mutated_request_is_answered_or_refused(path: str, data: st.DataObject) -> None:
    """The status is 200, 400 or 413, and the body is JSON."""
    body = data.draw(st.sampled_from(_bodies(path)).flatmap(mutated))
    status, answer = asyncio.run(_post(APPLICATION, path, body))
    assert status in {200, 400, 413}, answer
    if status != 200:
        assert answer["error"]


@fuzz
@given(cluster=mutated(CLUSTER))
def test_a_mutated_snapshot_is_read_or_refused(cluster: Any, tmp_path: Path) -> None:
    """What can be read can be decided about and shown."""
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(cluster))
    try:
        app = create_app(load_snapshot(str(file)).snapshot, Settings(), NOW)
    except CoreError:
        return
    for path in ("/filter", "/prioritize", "/explain"):
        status, answer = asyncio.run(_post(app, path, by_names(_pod())))
        assert status == 200, answer
    assert asyncio.run(_get_state(app)) == 200


async def _get_state(app: Any) -> int:
    async with http_client(app, raise_app_exceptions=False) as client:
        return (await client.get("/state")).status_code


@fuzz
@given(policy=st.sampled_from(POLICIES).flatmap(mutated))
def test_a_mutated_policy_is_read_or_refused(policy: Any, tmp_path: Path) -> None:
    """What can be read decides about a request."""
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(policy))
    try:
        policy_file = PolicyFile(str(file))
    except CoreError:
        return
    snapshot = tmp_path / "cluster.json"
    snapshot.write_text(json.dumps(CLUSTER))
    app = create_app(load_snapshot(str(snapshot)).snapshot, Settings(), NOW, file=policy_file)
    for path in ("/filter", "/prioritize"):
        status, answer = asyncio.run(_post(app, path, by_names(_pod())))
        assert status in {200, 503}, answer

"""Enforcement `observe`: every node fits; what would have been refused is counted and logged."""

import json
from typing import Any

from app.runtime.probes import PREFIX
from app.settings import Settings
from scheduler_core.decide.extender_settings import Enforcement
from tests.builders import claim, kube_node
from tests.worlds.service import NODES, application, db_pod, http_client, small_cluster

OBSERVING = Settings(enforcement=Enforcement.OBSERVE)


async def post(path: str, request: Any, *objects: Any) -> tuple[Any, str]:
    """Sends a request; returns the answer, and the metrics after it."""
    async with http_client(application(*objects, settings=OBSERVING)) as client:
        response = await client.post(path, content=json.dumps(request).encode())
        assert response.status_code == 200
        return response.json(), (await client.get("/metrics")).text


async def test_all_names_fit() -> None:
    """Nothing is counted, because some nodes have space."""
    answer, metrics = await post("/filter", {"Pod": db_pod(), "NodeNames": list(NODES)})
    assert answer["NodeNames"] == list(NODES)
    assert not answer["FailedNodes"]
    assert not answer["FailedAndUnresolvableNodes"]
    assert f"{PREFIX}_would_refuse_total 0.0" in metrics
    assert f'{PREFIX}_verdicts_total{{reason="insufficient_storage"}} 2.0' in metrics


async def test_all_whole_nodes_fit() -> None:
    items = [kube_node(name) for name in NODES]
    answer, _ = await post("/filter", {"Pod": db_pod(), "Nodes": {"items": items}})
    assert answer["Nodes"]["items"] == items


async def test_a_pod_that_would_have_been_refused_everywhere_is_counted() -> None:
    """Enforcing would change its answer."""
    answer, metrics = await post("/filter", {"Pod": db_pod(), "NodeNames": ["node-2", "node-4"]})
    assert answer["NodeNames"] == ["node-2", "node-4"]
    assert f"{PREFIX}_would_refuse_total 1.0" in metrics


async def test_a_pod_that_cannot_be_decided_about_fits_everywhere() -> None:
    others = [entry for entry in small_cluster() if entry["kind"] != "PersistentVolumeClaim"]
    answer, metrics = await post("/filter", {"Pod": db_pod(), "NodeNames": list(NODES)}, others, claim("other"))
    assert answer["NodeNames"] == list(NODES)
    assert not answer.get("Error")
    assert f'{PREFIX}_filter_requests_total{{result="error"}} 1.0' in metrics


async def test_preemption_keeps_every_node() -> None:
    victims = {name: {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0} for name in NODES}
    answer, _ = await post("/preempt", {"Pod": db_pod(), "NodeNameToMetaVictims": victims})
    assert sorted(answer["NodeNameToMetaVictims"]) == sorted(NODES)


async def test_explain_shows_refusals() -> None:
    answer, _ = await post("/explain", {"Pod": db_pod(), "NodeNames": list(NODES)})
    assert [entry["fits"] for entry in answer["nodes"].values()] == [True, False, True, False]

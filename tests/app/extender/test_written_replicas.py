"""The replicas of a node, as the API server has them."""

from pathlib import Path

import pytest
from aiohttp import web

from app.extender.guard import written_replicas
from app.kube.client import ApiError, KubeClient
from app.kube.resources import LONGHORN_REPLICAS
from tests import builders as make
from tests.worlds.fake_api import failing, serve

NAMESPACE = "longhorn-system"


async def test_the_replicas_that_the_label_names_are_read_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    """The others count, or one bad object would hide what another process answered."""
    asked: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((request.path, request.query["labelSelector"]))
        damaged = {"metadata": {"name": "r-2"}, "spec": {"volumeSize": "much"}}
        return web.json_response({"items": [damaged, make.replica("r-1", "vol-1", "n", size=10)]})

    async with serve(answer, tmp_path) as kubeconfig:
        client = await KubeClient.connect(str(kubeconfig))
        replicas = await written_replicas(client, NAMESPACE, "n")
        await client.close()
    assert [replica.name for replica in replicas] == ["r-1"]
    assert asked == [(LONGHORN_REPLICAS.path(NAMESPACE), "longhornnode=n")]


async def test_an_api_server_that_refuses_is_an_error(tmp_path: Path) -> None:
    async with serve(failing(403), tmp_path) as kubeconfig:
        client = await KubeClient.connect(str(kubeconfig))
        with pytest.raises(ApiError):
            await written_replicas(client, NAMESPACE, "n")
        await client.close()

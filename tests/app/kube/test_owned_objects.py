"""Objects with an owner: what happens if the API server does not say as whom it knows the process."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from app.kube.client import ApiError, create_owned
from app.kube.resources import LEASES
from tests.worlds.fake_api import FakeApi, connect_client, failing

LEASE = {"kind": "Lease", "metadata": {"name": "extender"}}


async def echo(request: web.Request) -> web.StreamResponse:
    return web.json_response(await request.json())


async def known_as_account(request: web.Request) -> web.StreamResponse:
    user = {"username": "system:serviceaccount:longhorn-system:extender", "uid": "u-1"}
    return web.json_response({**await request.json(), "status": {"userInfo": user}})


async def create(folder: Path, *answers: Any) -> Any:
    """Creates a Lease; the API server answers the calls in this order."""
    api = FakeApi()
    api.plans["get"] = list(answers)
    async with connect_client(api, folder) as client:
        return json.loads(await create_owned(client, LEASES.path("longhorn-system"), "longhorn-system", LEASE, 5))


async def test_the_owner_is_added_to_the_object(tmp_path: Path) -> None:
    created = await create(tmp_path, known_as_account, echo)
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "extender", "uid": "u-1"}
    assert created["metadata"] == {"name": "extender", "ownerReferences": [owner]}


@pytest.mark.parametrize("status", [403, 404])
async def test_an_object_without_an_owner_is_better_than_none(tmp_path: Path, status: int) -> None:
    assert await create(tmp_path, failing(status), echo) == LEASE


async def test_another_error_is_tried_again_by_the_caller(tmp_path: Path) -> None:
    """Otherwise a moment's trouble would leave an object behind for ever."""
    with pytest.raises(ApiError):
        await create(tmp_path, failing(500), echo)

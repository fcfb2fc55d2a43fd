"""From where /filter is called, as /state shows it."""

from app.api.dependencies import MAX_CALLERS, RecentCallers
from tests.worlds.service import NODES, db_pod, small_service


def test_callers_are_counted_by_address_and_form() -> None:
    time = [10.0]
    callers = RecentCallers(lambda: time[0])
    for whole_nodes in (False, False, True):
        callers.record("10.0.0.1", whole_nodes=whole_nodes)
        time[0] += 1
    assert [tuple(entry.model_dump().values()) for entry in callers.answers()] == [
        ("10.0.0.1", "names", 2, 2.0),
        ("10.0.0.1", "nodes", 1, 1.0),
    ]


def test_the_latest_callers_are_remembered() -> None:
    callers = RecentCallers()
    for number in range(2 * MAX_CALLERS):
        callers.record(f"10.0.0.{number:03}", whole_nodes=False)
    assert next(entry.address for entry in callers.answers()) == f"10.0.0.{MAX_CALLERS:03}"
    assert len(callers.answers()) == MAX_CALLERS


async def test_state_shows_the_form_of_a_request() -> None:
    async with small_service() as client:
        await client.post("/filter", json={"Pod": db_pod(), "NodeNames": list(NODES)})
        items = [{"metadata": {"name": name}} for name in NODES]
        await client.post("/filter", json={"Pod": db_pod(), "Nodes": {"items": items}})
        callers = (await client.get("/state")).json()["callers"]
    assert [(entry["form"], entry["requests"]) for entry in callers] == [("names", 1), ("nodes", 1)]

"""The memory that a process may use, and one budget of it for all requests: who is refused, and who gives way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from app.memory_budget import (
    BYTES_PER_PERIOD,
    DEFAULT_LIMIT,
    BudgetExceededError,
    Lease,
    MemoryBudget,
    SlowBodyError,
    memory_limit,
)
from tests.worlds.virtual_time import virtual_loop, virtually

TOTAL = 100
MIB = 1024**2


@asynccontextmanager
async def _receiving(lease: Lease, size: int) -> AsyncIterator[asyncio.Task[None]]:
    """A body of which so much has arrived, and no more comes."""

    async def receive() -> None:
        async with lease.receiving():
            lease.charge(size)
            lease.progress(size)
            await asyncio.Event().wait()

    task = asyncio.create_task(receive())
    await asyncio.sleep(0)
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_lease_ends_with_its_block() -> None:
    budget = MemoryBudget(TOTAL)
    with budget.lease("a") as lease:
        lease.charge(60)
        assert budget.used == 60
    assert budget.used == 0


@pytest.mark.parametrize(("size", "permanent"), [(41, False), (101, True)])
@virtually
async def test_a_request_beyond_the_budget_is_refused(size: int, permanent: bool) -> None:
    """Trying again helps unless it needs more than all may have."""
    budget = MemoryBudget(TOTAL)
    with budget.lease("a") as first, budget.lease("b") as second:
        first.charge(60)
        with pytest.raises(BudgetExceededError) as raised:
            second.charge(size)
    assert (raised.value.permanent, budget.refusals) == (permanent, 1)


@virtually
async def test_a_silent_body_gives_way() -> None:
    budget = MemoryBudget(TOTAL)
    with ExitStack() as stack:
        older, newer, newcomer = (stack.enter_context(budget.lease("a")) for _ in range(3))
        async with _receiving(older, 50) as first:
            await asyncio.sleep(0.5)
            async with _receiving(newer, 50) as second:
                await asyncio.sleep(0.6)
                newcomer.charge(10)
                with pytest.raises(BudgetExceededError):
                    await first
                assert not second.done()
    assert budget.used == 0


@pytest.mark.parametrize(("owner", "gives_way"), [("a", False), ("b", True)])
@virtually
async def test_the_caller_with_the_most_gives_way_to_another_one(owner: str, gives_way: bool) -> None:
    budget = MemoryBudget(TOTAL)
    with budget.lease("a") as large, budget.lease(owner) as newcomer:
        async with _receiving(large, 80) as body:
            if gives_way:
                newcomer.charge(30)
                with pytest.raises(BudgetExceededError):
                    await body
            else:
                with pytest.raises(BudgetExceededError):
                    newcomer.charge(30)
                assert not body.done()


@virtually
async def test_a_body_must_keep_coming() -> None:
    async def receive(lease: Lease) -> None:
        async with lease.receiving():
            for _ in range(3):
                await asyncio.sleep(4)
                lease.progress(BYTES_PER_PERIOD)
            while True:
                await asyncio.sleep(1)
                lease.progress(10)

    with MemoryBudget(TOTAL).lease("a") as lease, pytest.raises(SlowBodyError):
        await receive(lease)
    assert virtual_loop().time() == pytest.approx(17)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        pytest.param({}, DEFAULT_LIMIT, id="no control group"),
        pytest.param({"proc/self/cgroup": "0::/\n"}, DEFAULT_LIMIT, id="no limit file"),
        pytest.param({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, DEFAULT_LIMIT, id="no limit"),
        pytest.param(
            {"proc/self/cgroup": "0::/pods/a\n", "sys/fs/cgroup/pods/memory.max": f"{300 * MIB}\n",
             "sys/fs/cgroup/pods/a/memory.max": f"{400 * MIB}\n"},
            300 * MIB, id="v2, the lowest of the ancestors",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": f"{200 * MIB}"}, 200 * MIB, id="v2, outside"
        ),
        pytest.param(
            {"proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n",
             "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
             "sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{256 * MIB}\n"},
            256 * MIB, id="v1",
        ),
        pytest.param(
            {"proc/self/cgroup": "4:memory:/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"},
            DEFAULT_LIMIT, id="v1, no limit",
        ),
    ],
)  # fmt: skip
def test_the_limit_is_the_lowest_of_the_control_groups(tmp_path: Path, files: dict[str, str], limit: int) -> None:
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert memory_limit(tmp_path) == limit

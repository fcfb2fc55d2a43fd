"""What runs together, and what waits for what."""

import asyncio

import pytest

from app.evaluator import Evaluator
from app.runtime.decision_thread import DecisionRunner, DecisionThread, OnCallersThread
from scheduler_core.decide.decision import Competing, Contenders, FilterOptions
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.model.kube import Pod
from scheduler_core.offers.ledger import Ledger
from tests.builders import as_pod, claim, competing, longhorn_node, pod, storage_class
from tests.worlds.engines import engines
from tests.worlds.state_source import FakeStateSource, SlowSource
from tests.worlds.two_nodes import database_pod, two_nodes
from tests.worlds.virtual_time import virtual_loop, virtually

NODES = [f"node-{number}" for number in range(600)]


@pytest.mark.parametrize("runner", [DecisionThread(), OnCallersThread()])
async def test_a_decision_in_the_middle_of_an_explanation_changes_neither(runner: DecisionRunner) -> None:
    source = FakeStateSource(storage_class(), claim("a", 10), engines(NODES), [longhorn_node(name) for name in NODES])
    alone = Evaluator(source, FilterOptions())
    evaluator = Evaluator(source, FilterOptions(), runner)
    requested = as_pod(pod("a"))

    contention = Contention()
    equivalence = EquivalenceCache()

    def contenders() -> Contenders:
        return competing(source.state(), Ledger(), contention, equivalence)

    expected = (await alone.explain(requested, NODES, contenders)).decision.reasons
    ended: list[str] = []
    explaining = asyncio.create_task(evaluator.explain(requested, NODES, contenders))
    explaining.add_done_callback(lambda _: ended.append("explanation"))
    for number in range(5):
        await asyncio.sleep(0.002)
        source.put(longhorn_node(NODES[number], 5))
        reasons = (await evaluator.decide(requested, NODES, contenders)).reasons
        ended.append("decision")
        assert [name for name, reason in zip(NODES, reasons, strict=True) if not reason.fits] == NODES[: number + 1]
    assert (await explaining).decision.reasons == expected
    assert ended[0] == "decision" or runner.__class__ is OnCallersThread


@virtually
async def test_the_class_of_a_claim_that_was_fetched_is_fetched_too() -> None:
    """Without its class the claim would pass for one of another driver, and every node would fit."""
    source = FakeStateSource([raw for raw in two_nodes() if raw["kind"] != "StorageClass"])
    source.elsewhere = {"default/data-0": claim("data-0", 500), "longhorn": storage_class()}
    decision = await Evaluator(source, FilterOptions()).decide(as_pod(database_pod(0)), ["a", "b"])
    assert source.fetched == ["default/data-0", "longhorn"]
    assert not decision.fits


def test_explanations_have_caches_of_their_own() -> None:
    source = FakeStateSource(storage_class())
    contenders = competing(source.state())
    explained = Evaluator(source, FilterOptions()).explained(contenders)
    assert isinstance(contenders, Competing)
    assert isinstance(explained, Competing)
    assert explained.contention is not contenders.contention
    assert explained.equivalence is not contenders.equivalence
    assert (explained.demand, explained.ledger) == (contenders.demand, contenders.ledger)


@virtually
async def test_a_pod_that_a_watch_delivers_meanwhile_does_not_wait_for_others() -> None:
    """Requests about many pods that do not exist must not hold up real ones."""
    source = SlowSource(two_nodes())
    evaluator = Evaluator(source, FilterOptions())
    ghosts = [asyncio.create_task(evaluator.has_pod(Pod("default", f"ghost-{number}", "uid"))) for number in range(50)]
    await asyncio.sleep(0)
    real = asyncio.create_task(evaluator.has_pod(Pod("default", "db-0", "uid-0")))
    await asyncio.sleep(0.01)
    source.put(database_pod(0))
    assert await real
    assert virtual_loop().time() < 0.1
    results = await asyncio.gather(*ghosts, return_exceptions=True)
    assert True not in results
    assert any(isinstance(result, ResolutionError) for result in results)

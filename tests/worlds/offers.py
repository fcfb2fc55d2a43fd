"""Ledgers with offers to pods of a view."""

from collections.abc import Collection, Iterable

from scheduler_core.cluster.view import View
from scheduler_core.decide.offered_nodes import observed_pod
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import Offered
from scheduler_core.volumes.resolve import resolve


def ledger_with_offers(view: View, offers: Iterable[tuple[str, Collection[str]]]) -> Ledger:
    ledger = Ledger()
    for second, (name, nodes) in enumerate(offers):
        ledger = with_offer(ledger, view, name, nodes, float(second))
    return ledger


def with_offer(
    ledger: Ledger, view: View, name: str, nodes: Collection[str], now: float, *, priority: int | None = None
) -> Ledger:
    """The ledger after an offer to a pod of the view, for all volumes that need space there; a hold with a priority."""
    pod = view.snapshot.pods["default", name]
    offered = Offered(observed_pod(pod), frozenset(nodes), resolve(pod, view).local, priority=priority)
    after, _ = step(ledger, offered, now)
    return after

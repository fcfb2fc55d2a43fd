"""The latency of placements is read from the API server's audit events."""

from typing import Any

from tests.e2e.placement_latency import PlacementLatency

WEBHOOK = {"mutation.webhook.admission.k8s.io/round_0_index_0": "{}"}


def event(end: str, annotations: dict[str, str], resource: str = "replicas", verb: str = "update") -> dict[str, Any]:
    """A call that began at the full second."""
    return {
        "verb": verb,
        "objectRef": {"resource": resource},
        "annotations": annotations,
        "requestReceivedTimestamp": "2026-11-23T12:00:00.000000Z",
        "stageTimestamp": f"2026-11-23T12:00:00.{end}Z",
    }


def test_only_updates_of_replicas_count() -> None:
    """Those with a webhook's annotation are the reviewed ones."""
    events = [
        event("015000", WEBHOOK),
        event("009000", {}),
        event("500000", {}, resource="volumes"),
        event("500000", {}, verb="create"),
        event("500000", {}, verb="patch"),
    ]
    latency = PlacementLatency.of(events)
    assert latency == PlacementLatency((15.0,), (9.0,))
    assert str(latency).endswith("1 other updates of replicas 9.0 ms")


def test_webhook_calls_within_the_budget_are_counted_by_the_api_server() -> None:
    """Those of mutating webhooks, over all operations."""
    name = "apiserver_admission_webhook_admission_duration_seconds"
    labels = 'name="placement-guard",operation="UPDATE",rejected="false"'
    metrics = (
        f"# TYPE {name} histogram\n"
        f'{name}_bucket{{{labels},type="admit",le="0.025"}} 3\n'
        f'{name}_bucket{{{labels},type="admit",le="+Inf"}} 4\n'
        f'{name}_bucket{{{labels},type="validating",le="+Inf"}} 9\n'
    )
    latency = PlacementLatency.of([event("015000", WEBHOOK)], metrics, [9.0, 4.0, 5.0])
    assert str(latency) == (
        "1 reviewed placements took 15.0 ms at the API server (median; 99 % at most 15.0), 0 other updates of replicas; "
        "3 of 4 webhook calls took at most 25 ms; the extender's part 5.0 ms (99 % at most 9.0)"
    )

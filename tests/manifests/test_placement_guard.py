"""The placement guard as installed: it never stops Longhorn, and is called for placements only."""

from app.api.placement_review import PATH
from app.extender.guard import ANSWER_SECONDS
from app.extender.guard_certificate import NAME as CERTIFICATE, WEBHOOK
from app.kube.resources import LONGHORN_REPLICAS, MUTATING_WEBHOOKS
from scheduler_core.convert.installed_objects import TAG
from scheduler_core.leadership import endpoint_slice
from scheduler_core.model.longhorn import REVIEWED
from tests.manifests.load import GUARD, MANIFESTS, NAMESPACE, documents, only

ACCESS = MANIFESTS / "access"
HOOK, STANDBY = only(MUTATING_WEBHOOKS.kind, ACCESS)["webhooks"]


def test_no_webhook_may_stop_longhorn_or_kubernetes() -> None:
    """`failurePolicy: Fail` in a webhook would: all of them are ignored if they fail, and answered or given up after a second."""
    hooks = [
        hook
        for path in sorted(MANIFESTS.rglob("*.yaml"))
        for document in documents(path)
        if str(document.get("kind")).endswith("WebhookConfiguration")
        for hook in document["webhooks"]
    ]
    assert hooks
    assert [(hook["failurePolicy"], hook["timeoutSeconds"]) for hook in hooks] == [("Ignore", 1)] * len(hooks)
    assert max(hook["timeoutSeconds"] for hook in hooks) > ANSWER_SECONDS


def test_the_webhook_is_called_for_replicas_that_get_a_disk() -> None:
    """One update in a replica's life, and the dry run of `doctor`; the kinds of all other namespaces are left alone."""
    assert HOOK["rules"] == [
        {
            "apiGroups": [LONGHORN_REPLICAS.group],
            "apiVersions": [LONGHORN_REPLICAS.version],
            "operations": ["CREATE", "UPDATE"],
            "resources": [LONGHORN_REPLICAS.plural],
            "scope": "Namespaced",
        }
    ]
    assert HOOK["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    (condition,) = HOOK["matchConditions"]
    assert f"request.?dryRun.orValue(false) && object.metadata.?name.orValue('') == '{TAG}'" in condition["expression"]
    assert (HOOK["sideEffects"], HOOK["reinvocationPolicy"], HOOK["matchPolicy"]) == (
        "NoneOnDryRun", "Never", "Equivalent",
    )  # fmt: skip


def test_the_webhook_calls_what_the_program_serves() -> None:
    service = only("Service", ACCESS, name=GUARD)
    port, standby_port = service["spec"]["ports"]
    assert HOOK["clientConfig"] == {
        "service": {"name": GUARD, "namespace": NAMESPACE, "path": PATH, "port": port["port"]}
    }
    assert HOOK["name"] == WEBHOOK
    assert HOOK["admissionReviewVersions"] == ["v1"]
    assert service["metadata"]["name"] == CERTIFICATE == endpoint_slice.PLACEMENT_GUARD.name == GUARD
    assert port["name"] == endpoint_slice.PLACEMENT_GUARD.port_name
    assert STANDBY["clientConfig"]["service"] == {**HOOK["clientConfig"]["service"], "port": standby_port["port"]}
    assert standby_port["name"] == endpoint_slice.PLACEMENT_GUARD_STANDBY.port_name
    assert (port["targetPort"], standby_port["targetPort"]) == (
        endpoint_slice.PLACEMENT_GUARD.port,
        endpoint_slice.PLACEMENT_GUARD.port,
    )
    assert "selector" not in service["spec"]


def test_a_standby_is_asked_the_same_question_if_the_leader_has_not_answered() -> None:
    """Whether it has, its annotation on the object says; a dry run asks for the leader's answer alone."""
    asked_differently = {"name", "clientConfig", "rules", "matchConditions"}
    assert {key for key in HOOK if HOOK[key] != STANDBY[key]} == asked_differently
    (rule,) = STANDBY["rules"]
    assert rule == {**HOOK["rules"][0], "operations": ["UPDATE"]}
    placed, unanswered = STANDBY["matchConditions"]
    assert placed["expression"] in HOOK["matchConditions"][0]["expression"]
    assert f"[?'{REVIEWED}']" in unanswered["expression"]

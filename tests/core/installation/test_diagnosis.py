"""Every check of an installation reports its mistake. A sound installation has no finding."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any

import pytest

from scheduler_core.installation.diagnosis import (
    INSTALLED,
    UNINSTALLED,
    Check,
    check_storage_classes,
    diagnose,
    is_well,
)
from scheduler_core.installation.facts import (
    Caller,
    Finding,
    GuardTrial,
    Installation,
    ProbeResult,
    ProcessReport,
    Severity,
)
from scheduler_core.installation.scheduler_checks import CAUSES, cause_of, is_refusal
from scheduler_core.model.installation import HeldLease, InstalledPod, Permission, SchedulingFailure, ServiceAddress
from scheduler_core.model.kube import StorageClass
from scheduler_core.model.longhorn import Disk, Node
from scheduler_core.model.verdict import Reason
from scheduler_core.structs import replace

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMESPACE = "longhorn-system"
REFUSED = "0/3 nodes are available: 3 Longhorn node tags do not match."
DOWN = 'Post "http://10.0.0.1:9504/filter": dial tcp 10.0.0.1:9504: connect: connection refused'
UNMANAGED = "0/3 nodes are available: 3 Insufficient longhorn.io/scheduler-extender."


def own_pod(name: str, address: str) -> InstalledPod:
    return InstalledPod(NAMESPACE, name, address=address, port=9504, account="longhorn-scheduler-extender")


def longhorn_class(name: str = "fast", *, waits: bool = True, **parameters: str) -> StorageClass:
    return StorageClass(name, "driver.longhorn.io", parameters, waits_for_consumer=waits)


PODS = (own_pod("a", "10.0.0.1"), own_pod("b", "10.0.0.2"))
SOUND = Installation(
    now=NOW,
    kubernetes_version="v1.36.3+k3s1",
    service=ServiceAddress("10.43.0.9", 9504),
    pods=PODS,
    system_pods=PODS,
    admitted=InstalledPod("default", "new", requests_extender=True),
    lease=HeldLease("a_3f9a1c07", 15, renewed="2025-12-31T23:59:58Z"),
    endpoints=("10.0.0.1",),
    reports={
        "a": ProcessReport(answering=True, guard_mode="enforce", callers=(Caller("10.0.0.9"),)),
        "b": ProcessReport(refusal="not the leader, a is"),
    },
    guard_installed=True,
    guard_trial=GuardTrial(answered=True),
    failures=(SchedulingFailure("shop/db-0", REFUSED),),
    probe=ProbeResult(message=REFUSED),
    settings={"current-longhorn-version": "v1.12.0", "storage-over-provisioning-percentage": "100"},
    storage_classes=(longhorn_class(nodeSelector="ssd", diskSelector="nvme"),),
    longhorn_nodes=(Node("n", tags=("ssd",), disks=(Disk("d", tags=("nvme",)),)),),
)


def with_settings(**settings: str) -> Installation:
    return replace(SOUND, settings={**SOUND.settings, **{name.replace("_", "-"): settings[name] for name in settings}})


def with_leader(report: ProcessReport) -> Installation:
    return replace(SOUND, reports={**SOUND.reports, "a": report})


def expiring(after: timedelta, problem: str = "") -> Installation:
    expiry = (NOW + after).timestamp()
    return with_leader(
        ProcessReport(answering=True, guard_mode="enforce", guard_problem=problem, certificate_expiry=expiry)
    )


def problems(facts: Installation, checks: tuple[Check, ...] = INSTALLED) -> list[Finding]:
    return [entry for entry in diagnose(facts, checks) if entry.severity not in {Severity.OK, Severity.SKIPPED}]


def test_a_sound_installation_has_one_good_finding_for_each_check() -> None:
    findings = diagnose(SOUND)
    assert {entry.severity for entry in findings} == {Severity.OK}
    assert [entry.check for entry in findings] == [check.name for check in INSTALLED]
    assert is_well(findings)


@pytest.mark.parametrize("check", [*INSTALLED, *UNINSTALLED], ids=lambda check: check.name)
def test_a_check_names_the_facts_that_its_test_is_given(check: Check) -> None:
    """No other fact can be behind what it says."""
    assert list(signature(check.test).parameters) == check.reads.split()


def with_probe(**result: str) -> Installation:
    return replace(SOUND, probe=ProbeResult(**result))


def without_policy(*pods: InstalledPod, node: str = "node-1", **changes: Any) -> Installation:
    """The sound installation without the policy. A probe pod without the resource gets a node."""
    facts = replace(SOUND, admitted=InstalledPod("default", "new"), claiming_pods=pods)
    return replace(facts, plain_probe=ProbeResult(node=node), **changes)


MISTAKES: dict[str, tuple[Installation, str, Severity, str]] = {
    "old Kubernetes": (
        replace(SOUND, kubernetes_version="v1.29.9"), "kubernetes-version", Severity.ERROR, "1.30 or newer",
    ),
    "untested Kubernetes": (
        replace(SOUND, kubernetes_version="v1.33.1"), "kubernetes-version", Severity.WARNING, "not tested",
    ),
    "unreadable Kubernetes": (
        replace(SOUND, kubernetes_version="?"), "kubernetes-version", Severity.WARNING, "cannot be read",
    ),
    "old Longhorn": (
        with_settings(current_longhorn_version="v1.9.2"), "longhorn-version", Severity.WARNING, "not compared",
    ),
    "unknown Longhorn": (
        with_settings(current_longhorn_version=""), "longhorn-version", Severity.WARNING, "cannot be read",
    ),
    "one pod": (
        replace(SOUND, pods=PODS[:1]), "pods", Severity.WARNING, "no other can take over",
    ),
    "a pod that is not ready": (
        replace(SOUND, pods=(PODS[0], replace(PODS[1], ready=False))), "pods", Severity.ERROR, "not ready",
    ),
    "an own pod that requests the resource": (
        replace(SOUND, system_pods=(replace(PODS[0], requests_extender=True), PODS[1])),
        "own-pods", Severity.ERROR, "requests longhorn.io/scheduler-extender",
    ),
    "a pod of the system that requests the resource": (
        replace(SOUND, system_pods=(InstalledPod("kube-system", "coredns-1", requests_extender=True),)),
        "own-pods", Severity.ERROR, "cannot start while no extender answers",
    ),
    "an own pod with a volume": (
        replace(SOUND, system_pods=(replace(PODS[0], claims=("data",)),)), "own-pods", Severity.ERROR, "claim data",
    ),
    "no Service": (replace(SOUND, service=None), "service", Severity.ERROR, "no Service"),
    "no Lease": (replace(SOUND, lease=None), "leader", Severity.ERROR, "no process holds"),
    "a Lease that is not renewed": (
        replace(SOUND, lease=HeldLease("a_1", 15, renewed="2025-12-31T23:00:00Z")),
        "leader", Severity.ERROR, "not renewed",
    ),
    "a leader that is no pod": (
        replace(SOUND, lease=HeldLease("c_1", 15, renewed="2025-12-31T23:59:58Z")),
        "leader", Severity.ERROR, "none of the extender's pods",
    ),
    "no EndpointSlice": (replace(SOUND, endpoints=()), "leader", Severity.ERROR, "names no process"),
    "an EndpointSlice of another process": (
        replace(SOUND, endpoints=("10.0.0.2",)),
        "leader", Severity.ERROR, "names 10.0.0.2, and the leader is at 10.0.0.1",
    ),
    "an EndpointSlice of two processes": (
        replace(SOUND, endpoints=("10.0.0.1", "10.0.0.2")),
        "leader", Severity.ERROR, "several processes",
    ),
    "caches that are not filled": (
        with_leader(ProcessReport(not_ready="volumes.longhorn.io: forbidden")), "caches", Severity.ERROR, "forbidden",
    ),
    "objects that are left out": (
        with_leader(ProcessReport(answering=True, unreadable=("Volume x: spec.size",))),
        "caches", Severity.WARNING, "Volume x",
    ),
    "a process that cannot be asked": (
        with_leader(ProcessReport(unreachable="no route")), "caches", Severity.WARNING, "no route",
    ),
    "a leader that does not answer": (
        with_leader(ProcessReport(refusal="scheduler-extender-enabled is false")),
        "answers", Severity.ERROR, "scheduler-extender-enabled is false",
    ),
    "a setting that is refused": (
        with_leader(ProcessReport(answering=True, refused_settings=("timeout: 'x'",))),
        "answers", Severity.WARNING, "timeout",
    ),
    "a key of the ConfigMap that is no setting, without a leader": (
        replace(SOUND, lease=None, refused_settings=("ConfigMap x: enforcment: there is no such setting",)),
        "answers", Severity.WARNING, "there is no such setting",
    ),
    "a missing permission": (
        replace(SOUND, denied=(Permission("watch", "longhorn.io", "volumes"),)),
        "permissions", Severity.ERROR, "may not watch volumes.longhorn.io",
    ),
    "a certificate that has expired": (expiring(-timedelta(hours=1)), "certificate", Severity.ERROR, "has expired"),
    "a certificate that expires": (expiring(timedelta(days=2)), "certificate", Severity.WARNING, "expires at"),
    "a guard that cannot be called": (
        expiring(timedelta(days=90), "the Secret is empty"), "certificate", Severity.ERROR, "the Secret is empty",
    ),
    "a port that API servers do not reach": (
        replace(SOUND, guard_trial=GuardTrial(obstacle="dial tcp 10.0.0.1:9507: i/o timeout")),
        "placement-guard", Severity.ERROR, "10.0.0.1:9507: i/o timeout",
    ),
    "a certificate that API servers do not trust": (
        replace(SOUND, guard_trial=GuardTrial()), "placement-guard", Severity.ERROR, "do not trust its certificate",
    ),
    "a guard that may be off": (
        replace(SOUND, reports={}, service=ServiceAddress("10.43.0.9", 9504, tls=True), guard_trial=GuardTrial()),
        "placement-guard", Severity.WARNING, "got no answer",
    ),
    "a replica that may not be created": (
        replace(SOUND, guard_trial=GuardTrial(problem="not allowed")),
        "placement-guard", Severity.WARNING, "could not be tried: not allowed",
    ),
    "a guard whose webhook was deleted": (
        replace(expiring(timedelta(days=90), "no webhook"), guard_installed=False, guard_trial=None),
        "certificate", Severity.ERROR, "no webhook",
    ),
    "an extender that is not registered": (
        with_probe(node="node-1"), "registration", Severity.ERROR, "does not call the extender",
    ),
    "a call that fails": (with_probe(message=DOWN), "registration", Severity.ERROR, "no process listens"),
    "a refusal without the extender": (
        with_probe(message="0/3 nodes are available: 3 node(s) were unschedulable."),
        "registration", Severity.WARNING, "before it asked the extender: 0/3 nodes",
    ),
    "no kube-scheduler": (with_probe(), "registration", Severity.WARNING, "kube-scheduler default-scheduler has said nothing"),
    "an extender that only observes": (
        replace(with_probe(node="node-1"), observes=True), "registration", Severity.WARNING, "the extender only observes",
    ),
    "a probe that is not allowed": (with_probe(problem="forbidden"), "registration", Severity.WARNING, "forbidden"),
    "a resource that is not managed": (with_probe(message=UNMANAGED), "resource", Severity.ERROR, "no extender manages it"),
    "events about a resource that is not managed": (
        replace(SOUND, failures=(SchedulingFailure("shop/a", UNMANAGED),)), "resource", Severity.ERROR, "looks for",
    ),
    "pods with claims that do not ask": (
        without_policy(InstalledPod("shop", "db-0"), InstalledPod("shop", "db-1", requests_extender=True)),
        "ask-policy", Severity.ERROR, "placed without the extender",
    ),
    "a new pod that would not ask": (without_policy(), "ask-policy", Severity.WARNING, "with a claim is placed without"),
    "whole nodes": (
        with_leader(ProcessReport(answering=True, callers=(Caller("10.0.0.9", sends_whole_nodes=True),))),
        "requests", Severity.WARNING, "sends whole nodes",
    ),
    "events about failed calls": (
        replace(SOUND, failures=(SchedulingFailure("shop/a", DOWN),)), "events", Severity.WARNING, "no process listens",
    ),
    "capacity tracking": (
        with_settings(csi_storage_capacity_tracking="true"), "capacity-tracking", Severity.WARNING, "drops nodes",
    ),
    "a driver that tracks capacity without the setting": (
        replace(SOUND, tracks_capacity=True), "capacity-tracking", Severity.WARNING, "as this version of Longhorn always writes it",
    ),
    "a driver that tracks capacity against the setting": (
        replace(with_settings(csi_storage_capacity_tracking="false"), tracks_capacity=True),
        "capacity-tracking", Severity.WARNING, "although the setting csi-storage-capacity-tracking is false",
    ),
    "over-provisioning": (
        with_settings(storage_over_provisioning_percentage="200"), "longhorn-settings", Severity.WARNING, "is 200",
    ),
    "no minimal available space": (
        with_settings(storage_minimal_available_percentage="0"), "longhorn-settings", Severity.WARNING, "is 0",
    ),
    "a setting that cannot be read": (
        with_settings(storage_minimal_available_percentage="x"), "longhorn-settings", Severity.ERROR, "cannot be read",
    ),
    "a StorageClass that binds at once": (
        replace(SOUND, storage_classes=(longhorn_class(waits=False),)),
        "storage-classes", Severity.WARNING, "cannot help",
    ),
    "a node tag that no node has": (
        replace(SOUND, storage_classes=(longhorn_class(nodeSelector="nvme"),)),
        "tags", Severity.WARNING, "'nvme', which no node has",
    ),
    "a disk tag that no disk has": (
        replace(SOUND, storage_classes=(longhorn_class(diskSelector="nvme,ssd"),)),
        "tags", Severity.WARNING, "'ssd', which no disk has",
    ),
    "a tag that no node can have": (
        replace(SOUND, storage_classes=(longhorn_class(nodeSelector="ssd, fast"),)),
        "tags", Severity.WARNING, "' fast', which no node can have",
    ),
    "a fact that may not be read": (
        replace(SOUND, unknown=("GET /apis/x: forbidden",)), "facts", Severity.WARNING, "/apis/x",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "check", "severity", "what"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_found(facts: Installation, check: str, severity: Severity, what: str) -> None:
    own = [entry for entry in problems(facts) if entry.check == check]
    assert [entry.severity for entry in own] == [severity]
    assert what in own[0].what
    assert own[0].command
    assert not is_well(diagnose(facts))


@pytest.mark.parametrize(
    ("version", "scheduler", "command"),
    [
        ("v1.36.3", "default-scheduler", "kubectl apply -k manifests/overlays/ask-policy"),
        ("v1.35.4", "default-scheduler", "kubectl apply -k manifests/overlays/ask-policy-v1beta1"),
        ("v1.33.1", "default-scheduler", "--pods all, or in each pod: longhorn.io/scheduler-extender"),
        ("v1.36.3", "longhorn-scheduler", "kubectl apply -k manifests/overlays/scheduler-name-policy"),
        ("v1.34.0", "longhorn-scheduler", "kubectl apply -k manifests/overlays/scheduler-name-policy-v1beta1"),
        ("v1.33.1", "longhorn-scheduler", "or in each pod: schedulerName: longhorn-scheduler"),
    ],
)
def test_the_policy_that_is_missing_is_that_of_the_cluster(version: str, scheduler: str, command: str) -> None:
    facts = without_policy(kubernetes_version=version, scheduler_name=scheduler)
    (finding,) = [entry for entry in problems(facts) if entry.check == "ask-policy"]
    assert finding.command.endswith(command) or command in finding.command
    assert finding.command.endswith("-v1beta1") is command.endswith("-v1beta1")


LOOPBACK = replace(SOUND, pods=(replace(PODS[0], on_loopback=True),), endpoints=())


def test_one_pod_on_the_loopback_without_an_endpoint_slice_is_well() -> None:
    assert problems(LOOPBACK) == []


def test_an_endpoint_slice_of_another_address_is_wrong_on_the_loopback_too() -> None:
    (finding,) = problems(replace(LOOPBACK, endpoints=("10.0.0.7",)))
    assert (finding.check, "names 10.0.0.7" in finding.what) == ("leader", True)


@pytest.mark.parametrize(
    ("version", "scheduler", "command"),
    [
        ("v1.36.3", "default-scheduler", "kubectl delete -k manifests/overlays/ask-policy"),
        ("v1.35.4", "default-scheduler", "kubectl delete -k manifests/overlays/ask-policy-v1beta1"),
        ("v1.35.4", "longhorn-scheduler", "kubectl delete -k manifests/overlays/scheduler-name-policy-v1beta1"),
        ("v1.33.1", "default-scheduler", "kubectl get mutatingwebhookconfigurations; remove what changes pods so"),
    ],
)
def test_the_policy_that_is_left_is_removed_as_it_was_applied(version: str, scheduler: str, command: str) -> None:
    admitted = InstalledPod("default", "new", requests_extender=True)
    facts = replace(SOUND, kubernetes_version=version, scheduler_name=scheduler, admitted=admitted)
    (finding,) = [entry for entry in problems(facts, UNINSTALLED) if entry.check == "ask-policy"]
    assert finding.command == command


@pytest.mark.parametrize("tls", [True, False])
def test_only_without_tls_a_process_can_be_asked_by_its_url(tls: bool) -> None:
    facts = replace(
        with_leader(ProcessReport(unreachable="no route")), service=ServiceAddress("10.43.0.9", 9504, tls=tls)
    )
    (finding,) = [entry for entry in problems(facts) if entry.check == "caches"]
    assert ("--url" in finding.command) is not tls


SENT: dict[str, Installation] = {
    "by the policy": SOUND,
    "by the policy, without a probe": replace(SOUND, probe=None),
    "by the policy of a second kube-scheduler": replace(
        SOUND, scheduler_name="second", admitted=InstalledPod("default", "new", scheduler_name="second")
    ),
    "with all other pods": replace(without_policy(), plain_probe=ProbeResult(message=REFUSED)),
    "by themselves": without_policy(InstalledPod("shop", "db-1", requests_extender=True)),
}


@pytest.mark.parametrize("facts", SENT.values(), ids=SENT.keys())
def test_pods_with_claims_are_sent(facts: Installation) -> None:
    assert [entry.severity for entry in diagnose(facts) if entry.check == "ask-policy"] == [Severity.OK]


def test_from_where_requests_come_is_said() -> None:
    (finding,) = [entry for entry in diagnose(SOUND) if entry.check == "requests"]
    assert finding.what == "with names of nodes come from 10.0.0.9"


def test_no_pods_are_found() -> None:
    names = {entry.check for entry in problems(replace(SOUND, pods=(), reports={}))}
    assert names == {"pods", "leader"}


UNASKED: dict[str, Installation] = {
    "it serves TLS": replace(
        SOUND, service=ServiceAddress("10.43.0.9", 9504, tls=True), reports={}, guard_installed=True
    ),
    "it cannot be reached": with_leader(ProcessReport(unreachable="no route")),
    "it is not ready": with_leader(ProcessReport(not_ready="volumes.longhorn.io: forbidden")),
    "there is no leader": replace(SOUND, lease=None),
}


@pytest.mark.parametrize("facts", UNASKED.values(), ids=UNASKED.keys())
@pytest.mark.parametrize("check", ["answers", "certificate"])
def test_what_only_the_leader_knows_is_not_well_without_its_report(facts: Installation, check: str) -> None:
    (finding,) = [entry for entry in diagnose(facts) if entry.check == check]
    assert finding.severity is Severity.SKIPPED
    assert finding.what.startswith("the leader ")


@pytest.mark.parametrize("check", ["certificate", "placement-guard"])
def test_a_placement_guard_that_is_off_cannot_be_called(check: str) -> None:
    facts = replace(with_leader(ProcessReport(answering=True, guard_mode="off")), guard_trial=GuardTrial())
    (finding,) = [entry for entry in diagnose(facts) if entry.check == check]
    assert (finding.severity, finding.what) == (Severity.OK, "the placement guard is off")


@pytest.mark.parametrize(
    ("obstacle", "command"),
    [
        ("dial tcp 10.0.0.1:9507: i/o timeout", "NetworkPolicy"),
        ("context deadline exceeded", "NetworkPolicy"),
        ("dial tcp 10.0.0.1:9507: connect: no route to host", "own pod network"),
        ("dial tcp 10.0.0.1:9507: connect: network is unreachable", "own pod network"),
        ("dial tcp 10.0.0.1:9507: connect: connection refused", "--placement-guard-port"),
        ("something else", "docs/placement-guard.md"),
    ],
)
def test_the_api_servers_own_error_names_what_keeps_it_from_the_guard(obstacle: str, command: str) -> None:
    (finding,) = problems(replace(SOUND, guard_trial=GuardTrial(obstacle=obstacle)))
    assert command in finding.command


def test_one_cause_of_a_silent_guard_is_said_once() -> None:
    facts = replace(expiring(timedelta(days=90), "the Secret is empty"), guard_trial=GuardTrial())
    assert [entry.check for entry in problems(facts)] == ["certificate"]


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: replace(facts, probe=None),
        lambda facts: replace(facts, denied=None),
        lambda facts: replace(facts, failures=None),
    ],
    ids=["no probe", "no permissions", "no events"],
)
def test_what_was_not_checked_is_neither_well_nor_a_problem(change: Callable[[Installation], Installation]) -> None:
    findings = diagnose(change(SOUND))
    assert [entry.severity for entry in findings].count(Severity.SKIPPED) == 1
    assert is_well(findings)


def test_capacity_of_other_drivers_classes_does_not_matter() -> None:
    other = StorageClass("other", "csi.example.com", {"nodeSelector": "none"})
    assert problems(replace(SOUND, storage_classes=(other,))) == []


@pytest.mark.parametrize(
    ("probe", "severity"),
    [
        (ProbeResult(node="node-1"), Severity.OK),
        (ProbeResult(message=UNMANAGED), Severity.SKIPPED),
        (ProbeResult(message=REFUSED), Severity.ERROR),
        (ProbeResult(message=DOWN), Severity.ERROR),
        (ProbeResult(), Severity.WARNING),
        (ProbeResult(problem="forbidden"), Severity.WARNING),
        (None, Severity.SKIPPED),
    ],
)
def test_it_can_be_uninstalled_once_kube_scheduler_does_not_call_it(
    probe: ProbeResult | None, severity: Severity
) -> None:
    findings = diagnose(replace(SOUND, probe=probe), UNINSTALLED)
    assert [entry.severity for entry in findings if entry.check == "uninstall"] == [severity]


@pytest.mark.parametrize(
    ("plain", "severity"),
    [
        (ProbeResult(node="node-1"), Severity.OK),
        (ProbeResult(message=REFUSED), Severity.ERROR),
        (ProbeResult(message=DOWN), Severity.ERROR),
        (ProbeResult(), Severity.WARNING),
        (ProbeResult(problem="forbidden"), Severity.WARNING),
    ],
)
@pytest.mark.parametrize(
    "asking", [ProbeResult(message=UNMANAGED), ProbeResult(node="node-1")], ids=["unmanaged", "node"]
)
def test_kube_scheduler_must_not_send_other_pods_either(
    asking: ProbeResult, plain: ProbeResult, severity: Severity
) -> None:
    findings = diagnose(replace(without_policy(), probe=asking, plain_probe=plain), UNINSTALLED)
    assert [entry.severity for entry in findings if entry.check == "uninstall"] == [severity]


def test_pods_of_the_second_kube_scheduler_are_named_before_it_is_removed() -> None:
    facts = replace(without_policy(), probe=ProbeResult(node="node-1"), second_scheduler_pods=("shop/db-0",))
    (finding,) = problems(facts, UNINSTALLED)
    assert (finding.check, finding.severity, finding.where) == ("requesting-pods", Severity.WARNING, "pod shop/db-0")
    assert "longhorn-scheduler" in finding.what


def test_what_an_uninstallation_would_leave_is_found() -> None:
    facts = replace(with_probe(node="node-1"), requesting_pods=("shop/a",))
    assert [entry.check for entry in problems(facts, UNINSTALLED)] == ["ask-policy", "requesting-pods"]


@pytest.mark.parametrize(("admitted", "severity"), [(None, Severity.SKIPPED), (InstalledPod("a", "b"), Severity.OK)])
def test_without_a_policy_it_can_be_uninstalled(admitted: InstalledPod | None, severity: Severity) -> None:
    """What a new pod would be is not always known."""
    findings = diagnose(replace(SOUND, admitted=admitted), UNINSTALLED)
    assert [entry.severity for entry in findings if entry.check == "ask-policy"] == [severity]


@pytest.mark.parametrize("reason", [reason for reason in Reason if not reason.fits], ids=lambda reason: reason.name)
def test_a_refusal_of_the_extender_is_no_failed_call(reason: Reason) -> None:
    message = f"0/2 nodes are available: 2 {reason.text}. preemption: not eligible."
    assert (is_refusal(message), cause_of(message)) == (True, None)


CALL = 'Post "http://10.0.0.1:9504/filter": '
CODE = "failed filter with extender at URL http://10.0.0.1:9504/filter, code "
TEXTS = {
    UNMANAGED: "ignoredByScheduler",
    DOWN: "get pods,lease,endpointslice",
    CALL + "dial tcp: lookup longhorn-scheduler-extender.longhorn-system.svc on 8.8.8.8:53: no such host": "clusterIP",
    CALL + "proxyconnect tcp: dial tcp: lookup proxy": "NO_PROXY",
    CALL + "http: server gave HTTP response to HTTPS client": "tlsConfig",
    CALL + "context deadline exceeded (Client.Timeout exceeded while awaiting headers)": "curl",
    CALL + "dial tcp 10.0.0.1:9504: i/o timeout": "curl",
    CALL + "EOF": "get pods,lease,endpointslice",
    CODE + "407": "NO_PROXY",
    CODE + "413": "nodeCacheCapable",
    CODE + "503": "restrict access",
    CODE + "404": "compare urlPrefix with the Service",
    "not the leader, a_1 is": "get pods,lease,endpointslice",
    "scheduler-extender-enabled is false (ConfigMap longhorn-scheduler-extender)": "edit configmap",
    "not ready: volumes.longhorn.io are not known yet": "logs",
}


@pytest.mark.parametrize(("message", "command"), TEXTS.items())
def test_a_text_of_kube_scheduler_reveals_its_cause(message: str, command: str) -> None:
    cause = cause_of(message)
    assert cause is not None
    assert command in cause.command


def test_every_cause_is_revealed_by_some_text() -> None:
    assert {cause_of(message) for message in TEXTS} == set(CAUSES)


@pytest.mark.parametrize(
    "message", ["0/3 nodes are available: 3 node(s) had untolerated taint.", 'persistentvolumeclaim "x" not found', ""]
)
def test_what_kube_schedulers_plugins_say_has_no_such_cause(message: str) -> None:
    assert cause_of(message) is None


ADVICE: dict[str, tuple[Installation, str, str]] = {
    "a fact that RBAC forbids": (
        replace(SOUND, unknown=('GET /api/v1/pods: pods is forbidden: User "a" cannot list resource "pods"',)),
        "facts", "ask with more rights",
    ),
    "an object that cannot be read": (
        replace(SOUND, unknown=("Node x: spec.tags is no list",)), "facts", "correct what it names",
    ),
    "a probe that a quota refuses": (
        with_probe(problem='POST /api/v1/pods: pods "x" is forbidden: exceeded quota: q'),
        "registration", "correct what it names",
    ),
    "an EndpointSlice that is empty as the extender is switched off": (
        replace(
            with_leader(ProcessReport(refusal="scheduler-extender-enabled is false (says ConfigMap x)")), endpoints=(),
        ),
        "leader", '{"data":{"scheduler-extender-enabled":"true"}}',
    ),
    "an EndpointSlice that is empty although the leader answers": (replace(SOUND, endpoints=()), "leader", "logs"),
    "an EndpointSlice that another program writes": (
        replace(SOUND, endpoints=("10.0.0.2",)), "leader", "delete endpointslice",
    ),
    "an extender that is switched off by a flag": (
        with_leader(ProcessReport(refusal="scheduler-extender-enabled is false (says flag or environment)")),
        "answers", "set scheduler-extender-enabled to true in the ConfigMap",
    ),
    "a leader that takes over": (
        with_leader(ProcessReport(refusal="taking over from the last leader")), "answers", "logs",
    ),
    "a guard without its webhook": (
        expiring(timedelta(days=90), "it has no webhook x; apply manifests/base"), "certificate", "docs/installation.md",
    ),
    "a guard whose Secret another program wrote": (
        expiring(timedelta(days=90), "Secret longhorn-scheduler-extender-placement-guard: ca.crt: no PEM"),
        "certificate", """patch secret longhorn-scheduler-extender-placement-guard --type merge -p '{"data":null}'""",
    ),
    "a guard whose port is taken": (
        expiring(timedelta(days=90), "cannot listen on :: port 9507: in use"), "certificate", "--placement-guard-port",
    ),
    "a guard without an address": (
        expiring(timedelta(days=90), "there is no address that API servers could call"), "certificate", "POD_IP",
    ),
    "a second kube-scheduler that says nothing": (
        replace(with_probe(), scheduler_name="second"), "registration", "run one with the profile second",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "check", "command"), ADVICE.values(), ids=ADVICE.keys())
def test_advice_follows_from_the_fact_that_triggered_it(facts: Installation, check: str, command: str) -> None:
    (finding,) = [entry for entry in problems(facts) if entry.check == check]
    assert command in finding.command


INCONCLUSIVE: dict[str, tuple[Installation, str, str]] = {
    "no second probe": (replace(without_policy(), plain_probe=None), "ask-policy", "no pod without its resource"),
    "a second probe that is not allowed": (
        replace(without_policy(), plain_probe=ProbeResult(problem="no quota")), "ask-policy", "no quota",
    ),
    "a second probe that kube-scheduler refuses": (
        replace(without_policy(), plain_probe=ProbeResult(message="0/1 nodes: 1 tainted")), "ask-policy", "1 tainted",
    ),
    "a first probe that got a node": (
        without_policy(probe=ProbeResult(node="node-1")), "ask-policy", "was not refused by the extender",
    ),
    "no first probe": (without_policy(probe=None), "ask-policy", "was not refused by the extender"),
    # It may have started a moment ago.
    "a leader without requests": (with_leader(ProcessReport()), "requests", "no request yet"),
    "a leader that cannot be asked for callers": (
        with_leader(ProcessReport(unreachable="no route")), "requests", "could not be asked: no route",
    ),
    "a leader that is not ready": (with_leader(ProcessReport(not_ready="no volumes")), "certificate", "no volumes"),
    "no leader": (replace(SOUND, lease=None), "certificate", "the leader is not known"),
    "no webhook": (replace(SOUND, guard_trial=None), "placement-guard", "there is no such webhook"),
    "a guard that cannot be called": (
        expiring(timedelta(days=90), "the Secret is empty"), "placement-guard", "the Secret is empty",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "check", "what"), INCONCLUSIVE.values(), ids=INCONCLUSIVE.keys())
def test_a_check_that_shows_nothing_names_the_fact_that_keeps_it_from_it(
    facts: Installation, check: str, what: str
) -> None:
    (finding,) = [entry for entry in diagnose(facts) if entry.check == check]
    assert (finding.severity, what in finding.what) == (Severity.SKIPPED, True)


def test_the_class_of_volumes_that_exist_may_bind_at_once() -> None:
    facts = replace(SOUND, storage_classes=(longhorn_class("longhorn-static", waits=False),))
    assert problems(facts) == []
    renamed = replace(facts, settings={**facts.settings, "default-longhorn-static-storage-class": "mine"})
    assert [entry.where for entry in problems(renamed)] == ["storageclass/longhorn-static"]


@pytest.mark.parametrize(
    ("name", "command"), [("fast", "create it again"), ("longhorn", "persistence.volumeBindingMode")]
)
def test_longhorns_own_storage_class_is_mended_where_longhorn_takes_it_from(name: str, command: str) -> None:
    [finding] = check_storage_classes([longhorn_class(name, waits=False)], {})
    assert command in finding.command

"""Checks of kube-scheduler: its calls of the extender, and its events. Each returns what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scheduler_core.extender.settings import ENFORCEMENT
from scheduler_core.installation.event_causes import UNMANAGED_RESOURCE, EventCause, cause_of, is_refusal
from scheduler_core.installation.facts import (
    PROGRAM,
    Finding,
    Installation,
    ProbeResult,
    Severity,
    advice_about,
    excerpt,
)
from scheduler_core.installation.registration import SECOND_SCHEDULER, apply_policy, policy_folder
from scheduler_core.model.installation import DEFAULT_SCHEDULER, EXTENDER_RESOURCE

_REGISTRATION: Final = "registration"
_UNINSTALL: Final = "uninstall"
_ASK_POLICY: Final = "ask-policy"
_REQUESTING_PODS: Final = "requesting-pods"
_NEW_POD: Final = "new pod"
_REGISTER: Final = "longhorn-extender scheduler-config --help; then doctor again"
_MAX_LISTED: Final = 3


def check_registration(facts: Installation) -> list[Finding]:
    """Whether a pod that fits nowhere is refused by the extender."""
    probe = facts.probe
    if probe is None:
        return [Finding(_REGISTRATION, Severity.SKIPPED, "no probe pod was created")]
    if probe.problem:
        what = f"could not be tried: {probe.problem}"
        return [Finding(_REGISTRATION, Severity.WARNING, what, "probe pod", advice_about(probe.problem))]
    if probe.node and facts.observes:
        observes = "the extender only observes, so that every node fits"
        what = f"the probe pod got {probe.node}, which shows nothing: {observes}"
        command = f"set {ENFORCEMENT} to enforce; then doctor again"
        return [Finding(_REGISTRATION, Severity.WARNING, what, f"configmap/{PROGRAM}", command)]
    if probe.node:
        misses = "it does not call the extender, or ignores its failure (ignorable)"
        what = f"kube-scheduler chose {probe.node} for a pod that fits on no node: {misses}"
        return [Finding(_REGISTRATION, Severity.ERROR, what, "kube-scheduler", _REGISTER)]
    if not probe.message:
        name = facts.scheduler_name
        default = name == DEFAULT_SCHEDULER
        runs = "kubectl -n kube-system get pods,lease" if default else f"run one with the profile {name}"
        what = f"{_silence(facts)}: it does not run, or is slow"
        command = f"{runs}; or see --scheduler-name and --probe-timeout"
        return [Finding(_REGISTRATION, Severity.WARNING, what, "kube-scheduler", command)]
    return [] if is_refusal(probe.message) else [_refused_otherwise(facts, probe.message)]


def _refused_otherwise(facts: Installation, message: str) -> Finding:
    cause = cause_of(message)
    if cause is not None:
        return Finding(_REGISTRATION, Severity.ERROR, cause.what, "kube-scheduler", _command(cause, facts))
    what = f"kube-scheduler refused the probe pod before it asked the extender: {excerpt(message)}"
    command = "have one node that it does not refuse by itself; then doctor again"
    return Finding(_REGISTRATION, Severity.WARNING, what, "kube-scheduler", command)


def check_ask_policy(facts: Installation) -> list[Finding]:
    """Whether pods with claims are sent to the extender: a policy or the pods themselves request it, or kube-scheduler
    sends all pods.
    """
    admitted = facts.admitted
    plain = facts.plain_probe
    if admitted is not None and admitted.asks(facts.scheduler_name):
        return []
    if plain is not None and is_refusal(plain.message):
        return []
    if plain is None or not plain.node or facts.probe is None or not is_refusal(facts.probe.message):
        what = f"which pods are sent to the extender is not known: {_policy_obstacle(facts)}"
        return [Finding(_ASK_POLICY, Severity.SKIPPED, what)]
    silent = [pod.key for pod in facts.claiming_pods if not pod.asks(facts.scheduler_name)]
    apply = apply_policy(facts.kubernetes_version, facts.scheduler_name)
    if silent:
        what = "mount claims of Longhorn and are placed without the extender: they do not request its resource, and no policy adds it"
        return [Finding(_ASK_POLICY, Severity.ERROR, what, _pods(silent), apply)]
    if not facts.claiming_pods:
        what = "with a claim is placed without the extender, unless it requests its resource: no policy adds it"
        return [Finding(_ASK_POLICY, Severity.WARNING, what, _NEW_POD, apply)]
    return []


def _policy_obstacle(facts: Installation) -> str:
    """Why the probe pods do not show which pods are sent to the extender."""
    if facts.probe is None or not is_refusal(facts.probe.message):
        return "the probe pod that asks for it was not refused by the extender, see registration"
    return (
        "no pod without its resource was tried"
        if facts.plain_probe is None
        else _probe_problem(facts, facts.plain_probe)
    )


def _probe_problem(facts: Installation, probe: ProbeResult) -> str:
    """Why a probe pod has neither a node nor a refusal of the extender."""
    return probe.problem or excerpt(probe.message) or _silence(facts)


def _silence(facts: Installation) -> str:
    return f"the kube-scheduler {facts.scheduler_name} has said nothing about the probe pod"


def check_policy_removal(facts: Installation) -> list[Finding]:
    """Whether new pods would wait for an extender that is gone."""
    if facts.admitted is None:
        return [Finding(_ASK_POLICY, Severity.SKIPPED, "it is not known what policies do to a new pod")]
    if not facts.admitted.asks(facts.scheduler_name):
        return []
    what = "with a claim is still sent to the extender by a policy: once it is removed, such pods wait"
    folder = policy_folder(facts.kubernetes_version, facts.scheduler_name)
    otherwise = "kubectl get mutatingwebhookconfigurations; remove what changes pods so"
    command = f"kubectl delete -k {folder}" if folder else otherwise
    return [Finding(_ASK_POLICY, Severity.ERROR, what, _NEW_POD, command)]


def check_requests(facts: Installation) -> list[Finding]:
    """Which clients call the leader, and whether they send names only."""
    leader = facts.leader
    report = facts.leader_report
    if leader is None or report is None or not report.callers:
        return [Finding("requests", Severity.SKIPPED, facts.leader_silence or "the leader has had no request yet")]
    what = "sends whole nodes: kube-scheduler then scores every node as if no pod ran on it"
    command = "nodeCacheCapable: true in kube-scheduler's configuration"
    findings = [
        Finding("requests", Severity.WARNING, what, f"client {caller.address}", command)
        for caller in report.callers
        if caller.sends_whole_nodes
    ]
    named = sorted(caller.address for caller in report.callers if not caller.sends_whole_nodes)
    if named:
        what = f"with names of nodes come from {', '.join(named)}"
        findings.append(Finding("requests", Severity.OK, what, f"pod/{leader.name}"))
    return findings


def check_events(facts: Installation) -> list[Finding]:
    """Whether events of the last hour tell of failed calls."""
    if facts.failures is None:
        return [Finding("events", Severity.SKIPPED, "events could not be read")]
    pods: dict[EventCause, list[str]] = {}
    for failure in facts.failures:
        cause = cause_of(failure.message)
        if cause is not None and cause is not UNMANAGED_RESOURCE:
            pods.setdefault(cause, []).append(failure.pod)
    return [
        Finding("events", Severity.WARNING, cause.what, _pods(names), _command(cause, facts))
        for cause, names in pods.items()
    ]


def check_resource(facts: Installation) -> list[Finding]:
    """Whether pods that request the resource can be scheduled."""
    names = [failure.pod for failure in facts.failures or () if cause_of(failure.message) is UNMANAGED_RESOURCE]
    probed = facts.probe is not None and cause_of(facts.probe.message) is UNMANAGED_RESOURCE
    if not names and not probed:
        return []
    where = _pods(names) if names else "probe pod"
    return [Finding("resource", Severity.ERROR, UNMANAGED_RESOURCE.what, where, UNMANAGED_RESOURCE.command)]


def check_registration_removal(facts: Installation) -> list[Finding]:
    """Whether kube-scheduler no longer calls the extender, so that the extender can be removed."""
    if facts.probe is None:
        return [Finding(_UNINSTALL, Severity.SKIPPED, "no probe pod was created")]
    # Without managedResources the extender is called for every pod.
    probes = [facts.probe] if facts.plain_probe is None else [facts.probe, facts.plain_probe]
    unanswered = [probe for probe in probes if not probe.node and cause_of(probe.message) is None]
    if any(_shows_a_call(probe.message) for probe in probes):
        what = "kube-scheduler still calls the extender: without it, pods wait"
        command = "remove the extender from its configuration, and restart it"
        return [Finding(_UNINSTALL, Severity.ERROR, what, "kube-scheduler", command)]
    if unanswered:
        problem = _probe_problem(facts, unanswered[0])
        what = f"it is not known whether kube-scheduler calls the extender: {problem}"
        return [Finding(_UNINSTALL, Severity.WARNING, what)]
    if facts.plain_probe is None and not facts.probe.node:
        what = "a pod without the resource is tried once no policy adds the resource"
        return [Finding(_UNINSTALL, Severity.SKIPPED, what)]
    return []


def _shows_a_call(message: str) -> bool:
    cause = cause_of(message)
    return is_refusal(message) or (cause is not None and cause is not UNMANAGED_RESOURCE)


def check_requesting_pods(facts: Installation) -> list[Finding]:
    """Whether pods would wait for a resource or a kube-scheduler that is gone."""
    resource = f"request {EXTENDER_RESOURCE}: once no extender manages it, such pods are not scheduled any more"
    scheduler = (
        f"have the schedulerName {SECOND_SCHEDULER}: without that kube-scheduler, they are not scheduled any more"
    )
    return [
        Finding(_REQUESTING_PODS, Severity.WARNING, what, _pods(names), f"remove the {field} from their controllers")
        for names, field, what in (
            (facts.requesting_pods, "resource", resource),
            (facts.second_scheduler_pods, "schedulerName", scheduler),
        )
        if names
    ]


def _command(cause: EventCause, facts: Installation) -> str:
    return cause.command.replace("{kubectl}", facts.kubectl)


def _pods(names: Iterable[str]) -> str:
    distinct = sorted(set(names))
    more = len(distinct) - _MAX_LISTED
    return f"pod {', '.join(distinct[:_MAX_LISTED])}" + (f" and {more} more" if more > 0 else "")

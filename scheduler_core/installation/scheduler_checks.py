"""Checks of kube-scheduler: its calls of the extender, and its events. Each returns what is wrong.

What the text of a FailedScheduling event says about the way to the extender is in `CAUSES`; docs/operations.md has the same causes for
people.
"""

import re
from collections.abc import Iterable, Sequence

from scheduler_core.installation import kube_scheduler_config
from scheduler_core.installation.facts import (
    PROGRAM,
    Finding,
    Findings,
    ProbeResult,
    ProcessReport,
    Severity,
    advice_about,
    excerpt,
    list_some,
)
from scheduler_core.model import constraints, installation, verdict
from scheduler_core.structs import Struct

_NEW_POD = "new pod"
_REGISTER = "longhorn-extender scheduler-config --help; then doctor again"


class EventCause(Struct, frozen=True):
    """A cause that an event's text reveals."""

    pattern: str  # a regular expression that is found in the text
    what: str  # the cause, for an administrator
    command: str  # what mends it; ``{kubectl}`` is kubectl in the extender's namespace


# kube-scheduler's HTTP client begins a failure with this.
_CALL = r'Post "[^"]*/(?:filter|prioritize|preempt|bind)": .*'
_DOWN = "{kubectl} get pods,lease,endpointslice"
UNMANAGED_RESOURCE = EventCause(
    rf"Insufficient {re.escape(constraints.EXTENDER_RESOURCE)}",
    "kube-scheduler looks for longhorn.io/scheduler-extender on nodes: no extender manages it",
    "add managedResources with ignoredByScheduler: true to its configuration, and restart it",
)
# The first that matches counts.
CAUSES = (
    UNMANAGED_RESOURCE,
    EventCause(_CALL + "connection refused", "no process listens at the address that kube-scheduler calls", _DOWN),
    EventCause(
        _CALL + "no such host",
        "kube-scheduler cannot resolve the Service's name: it uses the host's DNS",
        "write the Service's clusterIP into urlPrefix: longhorn-extender scheduler-config",
    ),
    EventCause(
        _CALL + r"(?:proxyconnect|Proxy)|with extender at URL .*, code 407",
        "kube-scheduler sends the call through a proxy",
        "add the address in urlPrefix to NO_PROXY of kube-scheduler",
    ),
    EventCause(
        _CALL + r"(?:server gave HTTP response to HTTPS client|malformed HTTP response|certificate|tls: )",
        "kube-scheduler and the extender do not agree about TLS",
        "compare urlPrefix and tlsConfig in kube-scheduler's configuration",
    ),
    EventCause(
        _CALL + r"(?:context deadline exceeded|i/o timeout|Client\.Timeout exceeded|no route to host)",
        "no answer in time: a firewall or NetworkPolicy, a missing kube-proxy, or a leader that died",
        "curl the address in urlPrefix from a control-plane node",
    ),
    EventCause(
        r"with extender at URL .*, code 413",
        "the request is larger than the extender accepts",
        "nodeCacheCapable: true in kube-scheduler's configuration",
    ),
    EventCause(
        r"with extender at URL .*, code 503",
        "the extender has no memory left for the request: other callers hold it",
        "restrict access: docs/installation.md",
    ),
    EventCause(
        r"with extender at URL .*, code \d+",
        "the address that kube-scheduler calls answers, but not as the extender does",
        "compare urlPrefix with the Service: {kubectl} get service",
    ),
    EventCause(_CALL, "kube-scheduler's call failed", _DOWN),
    EventCause("not the leader, ", "kube-scheduler reached a process that does not lead", _DOWN),
    EventCause(
        "scheduler-extender-enabled is false",
        "the extender is switched off",
        "{kubectl} edit configmap longhorn-scheduler-extender",
    ),
    EventCause(
        r"not ready: |taking over from the last leader",
        "the extender did not know the cluster",
        "{kubectl} logs -l app.kubernetes.io/name=longhorn-scheduler-extender --prefix --tail=20",
    ),
)
_REFUSALS = tuple(reason.text for reason in verdict.Reason if not reason.fits)


def is_refusal(message: str) -> bool:
    """Whether the extender has refused nodes for one of its reasons."""
    return any(text in message for text in _REFUSALS)


def cause_of(message: str) -> EventCause | None:
    """The cause that an event's text reveals."""
    # None for a refusal of the extender, and for what kube-scheduler's own plugins say.
    if is_refusal(message):
        return None
    return next((cause for cause in CAUSES if re.search(cause.pattern, message, re.DOTALL)), None)


def check_registration(
    probe: ProbeResult | None,
    scheduler_name: str,
    observes: bool,  # noqa: FBT001 # a fact
) -> Findings:
    """Whether a pod that fits nowhere is refused by the extender."""
    where = "kube-scheduler"
    if probe is None:
        yield Finding(Severity.SKIPPED, "no probe pod was created")
    elif probe.problem:
        what = f"could not be tried: {probe.problem}"
        yield Finding(Severity.WARNING, what, "probe pod", advice_about(probe.problem))
    elif probe.node and observes:
        reason = "the extender only observes, so that every node fits"
        what = f"the probe pod got {probe.node}, which shows nothing: {reason}"
        command = f"set {installation.ENFORCEMENT} to enforce; then doctor again"
        yield Finding(Severity.WARNING, what, f"configmap/{PROGRAM}", command)
    elif probe.node:
        misses = "it does not call the extender, or ignores its failure (ignorable)"
        what = f"kube-scheduler chose {probe.node} for a pod that fits on no node: {misses}"
        yield Finding(Severity.ERROR, what, where, _REGISTER)
    elif not probe.message:
        default = scheduler_name == installation.DEFAULT_SCHEDULER
        runs = "kubectl -n kube-system get pods,lease" if default else f"run one with the profile {scheduler_name}"
        command = f"{runs}; or see --scheduler-name and --probe-timeout"
        yield Finding(Severity.WARNING, f"{_silence(scheduler_name)}: it does not run, or is slow", where, command)
    elif cause := cause_of(probe.message):
        yield Finding(Severity.ERROR, cause.what, where, cause.command)
    elif not is_refusal(probe.message):
        what = f"kube-scheduler refused the probe pod before it asked the extender: {excerpt(probe.message)}"
        yield Finding(
            Severity.WARNING, what, where, "have one node that it does not refuse by itself; then doctor again"
        )


def check_ask_policy(
    admitted: installation.InstalledPod | None,
    probes: tuple[ProbeResult | None, ProbeResult | None],
    claiming_pods: Sequence[installation.InstalledPod],
    scheduler_name: str,
    kubernetes_version: str,
) -> Findings:
    """Whether pods with claims reach the extender: by a policy, by themselves, or because all pods are sent."""
    probe, plain_probe = probes
    sends_all = plain_probe is not None and is_refusal(plain_probe.message)
    if sends_all or (admitted is not None and admitted.asks(scheduler_name)):
        return
    obstacle = ""
    if probe is None or not is_refusal(probe.message):
        obstacle = "the probe pod that asks for it was not refused by the extender, see registration"
    elif plain_probe is None:
        obstacle = "no pod without its resource was tried"
    elif not plain_probe.node:
        obstacle = _probe_problem(plain_probe, scheduler_name)
    silent = [pod.key for pod in claiming_pods if not pod.asks(scheduler_name)]
    apply = kube_scheduler_config.apply_policy(kubernetes_version, scheduler_name)
    if obstacle:
        yield Finding(Severity.SKIPPED, f"which pods are sent to the extender is not known: {obstacle}")
    elif silent:
        what = "mount claims of Longhorn and are placed without the extender: they do not request its resource, and no policy adds it"
        yield Finding(Severity.ERROR, what, _pods(silent), apply)
    elif not claiming_pods:
        what = "with a claim is placed without the extender, unless it requests its resource: no policy adds it"
        yield Finding(Severity.WARNING, what, _NEW_POD, apply)


def _probe_problem(probe: ProbeResult, scheduler: str) -> str:
    return probe.problem or excerpt(probe.message) or _silence(scheduler)


def _silence(scheduler: str) -> str:
    return f"the kube-scheduler {scheduler} has said nothing about the probe pod"


def check_policy_removal(
    admitted: installation.InstalledPod | None, scheduler_name: str, kubernetes_version: str
) -> Findings:
    """Whether new pods would wait for an extender that is gone."""
    if admitted is None:
        yield Finding(Severity.SKIPPED, "it is not known what policies do to a new pod")
    elif admitted.asks(scheduler_name):
        what = "with a claim is still sent to the extender by a policy: once it is removed, such pods wait"
        folder = kube_scheduler_config.policy_folder(kubernetes_version, scheduler_name)
        otherwise = "kubectl get mutatingwebhookconfigurations; remove what changes pods so"
        yield Finding(Severity.ERROR, what, _NEW_POD, f"kubectl delete -k {folder}" if folder else otherwise)


def check_requests(leader: installation.InstalledPod | None, leader_report: ProcessReport | str) -> Findings:
    """Which clients call the leader, and whether they send names only."""
    if leader is None or isinstance(leader_report, str):
        yield Finding(Severity.SKIPPED, str(leader_report))
        return
    if not leader_report.callers:
        yield Finding(Severity.SKIPPED, "the leader has had no request yet")
    what = "sends whole nodes: kube-scheduler then scores every node as if no pod ran on it"
    command = "nodeCacheCapable: true in kube-scheduler's configuration"
    for caller in leader_report.callers:
        if caller.sends_whole_nodes:
            yield Finding(Severity.WARNING, what, f"client {caller.address}", command)
    named = sorted(caller.address for caller in leader_report.callers if not caller.sends_whole_nodes)
    if named:
        yield Finding(Severity.OK, f"with names of nodes come from {', '.join(named)}", f"pod/{leader.name}")


def check_events(failures: Sequence[installation.SchedulingFailure] | None) -> Findings:
    """Whether events of the last hour tell of failed calls."""
    if failures is None:
        yield Finding(Severity.SKIPPED, "events could not be read")
    pods: dict[EventCause, list[str]] = {}
    for failure in failures or ():
        cause = cause_of(failure.message)
        if cause is not None and cause is not UNMANAGED_RESOURCE:
            pods.setdefault(cause, []).append(failure.pod)
    for cause, names in pods.items():
        yield Finding(Severity.WARNING, cause.what, _pods(names), cause.command)


def check_resource(failures: Sequence[installation.SchedulingFailure] | None, probe: ProbeResult | None) -> Findings:
    """Whether pods that request the resource can be scheduled."""
    names = [failure.pod for failure in failures or () if cause_of(failure.message) is UNMANAGED_RESOURCE]
    probed = probe is not None and cause_of(probe.message) is UNMANAGED_RESOURCE
    if names or probed:
        where = _pods(names) if names else "probe pod"
        yield Finding(Severity.ERROR, UNMANAGED_RESOURCE.what, where, UNMANAGED_RESOURCE.command)


def check_registration_removal(probes: tuple[ProbeResult | None, ProbeResult | None], scheduler_name: str) -> Findings:
    """Whether kube-scheduler no longer calls the extender, so that the extender can be removed."""
    probe, plain_probe = probes
    # Without managedResources the extender is called for every pod.
    answers = [entry for entry in probes if entry is not None]
    silent = [entry for entry in answers if not entry.node and cause_of(entry.message) is None]
    if probe is None:
        yield Finding(Severity.SKIPPED, "no probe pod was created")
    elif any(
        is_refusal(entry.message) or cause_of(entry.message) not in {None, UNMANAGED_RESOURCE} for entry in answers
    ):
        what = "kube-scheduler still calls the extender: without it, pods wait"
        command = "remove the extender from its configuration, and restart it"
        yield Finding(Severity.ERROR, what, "kube-scheduler", command)
    elif silent:
        problem = _probe_problem(silent[0], scheduler_name)
        yield Finding(Severity.WARNING, f"it is not known whether kube-scheduler calls the extender: {problem}")
    elif plain_probe is None and not probe.node:
        yield Finding(Severity.SKIPPED, "a pod without the resource is tried once no policy adds the resource")


def check_requesting_pods(requesting_pods: Sequence[str], second_scheduler_pods: Sequence[str]) -> Findings:
    """Whether pods would wait for a resource or a kube-scheduler that is gone."""
    resource = (
        f"request {constraints.EXTENDER_RESOURCE}: once no extender manages it, such pods are not scheduled any more"
    )
    scheduler = f"have the schedulerName {kube_scheduler_config.SECOND_SCHEDULER}: without that kube-scheduler, they are not scheduled any more"
    for names, field, what in (
        (requesting_pods, "resource", resource),
        (second_scheduler_pods, "schedulerName", scheduler),
    ):
        if names:
            yield Finding(Severity.WARNING, what, _pods(names), f"remove the {field} from their controllers")


def _pods(names: Iterable[str]) -> str:
    return f"pod {list_some(sorted(set(names)), ', ')}"

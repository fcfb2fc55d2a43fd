"""Checks of the extender itself: versions, pods, leader, caches, permissions, certificate. Each returns what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from scheduler_core.extender.settings import ENABLED
from scheduler_core.installation.facts import PROGRAM, Finding, Installation, Severity, advice_about, minor_version
from scheduler_core.longhorn.timestamps import parse_time
from scheduler_core.model.installation import InstalledPod, Permission

# docs/limitations.md has the same versions.
OLDEST_KUBERNETES: Final = (1, 30)
TESTED_KUBERNETES: Final = ((1, 35), (1, 36), (1, 37))
COMPARED_LONGHORN: Final = ((1, 10), (1, 11), (1, 12), (1, 13))
# The leader renews its certificate long before.
_EXPIRY_WARNING: Final = timedelta(days=7)
# Clocks of the administrator's machine and of the leader's node differ.
_CLOCK_SKEW: Final = timedelta(seconds=60)
_MAX_LISTED: Final = 3
_GUARD: Final = "placement-guard"
_WEBHOOK: Final = "mutatingwebhookconfiguration/longhorn-scheduler-extender-placement-guard"
_DISAGREE: Final = "have --placement-guard-port, containerPort and targetPort agree, on a free port"
_NO_ROUTE: Final = 'a network plugin whose pods the control plane reaches (own pod network), or placement-guard: "off"'
_BLOCKED: Final = "allow TCP port 9507 from the control plane to the pods: NetworkPolicy, or the provider's firewall"
# What an API server's error about its own call says, and what mends it: docs/placement-guard.md, "API servers do not reach it".
_WAYS: Final = (
    ("refused", _DISAGREE),
    ("no route", _NO_ROUTE),
    ("unreachable", _NO_ROUTE),
    ("timeout", _BLOCKED),
    ("deadline", _BLOCKED),
)
_OTHERWISE: Final = "see docs/placement-guard.md, API servers do not reach it"
_APPLY: Final = "apply the manifests or the chart of this version: docs/installation.md"
_SECRET: Final = f"{PROGRAM}-placement-guard"
# What the leader says about its guard, the object that it is about, and what mends it: docs/placement-guard.md, "Its certificate".
_GUARD_PROBLEMS: Final = (
    ("apply manifests/base", _WEBHOOK, _APPLY),
    ("cannot listen", "", _DISAGREE),
    ("there is no address", "", "set POD_IP as manifests/base does"),
    ("cannot be written", f"secret/{_SECRET}", f"{_APPLY}; the ServiceAccount must be allowed to patch it"),
    ("the serving certificate", f"secret/{_SECRET}", "{logs}"),
    (
        f"Secret {_SECRET}",
        f"secret/{_SECRET}",
        f"{{kubectl}} patch secret {_SECRET} --type merge -p '{{{{\"data\":null}}}}'",
    ),
)


def check_kubernetes_version(facts: Installation) -> list[Finding]:
    """Whether the extender is tested with this Kubernetes."""
    version = minor_version(facts.kubernetes_version)
    where = f"Kubernetes {facts.kubernetes_version}".strip()
    if version in TESTED_KUBERNETES:
        return []
    severity = Severity.WARNING
    what = "this version is not tested"
    command = "see docs/limitations.md"
    if version is None:
        what = "the version cannot be read"
        command = "kubectl version"
    elif version < OLDEST_KUBERNETES:
        severity = Severity.ERROR
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        what = f"Kubernetes {oldest} or newer is needed: the manifests contain a ValidatingAdmissionPolicy"
        command = "upgrade Kubernetes"
    return [Finding("kubernetes-version", severity, what, where, command)]


def check_longhorn_version(facts: Installation) -> list[Finding]:
    """Whether the placement rules of this Longhorn were compared."""
    version = minor_version(facts.longhorn_version)
    if version in COMPARED_LONGHORN:
        return []
    what = "the placement rules of this version were not compared"
    where = f"Longhorn {facts.longhorn_version}".strip()
    command = "see docs/limitations.md"
    if version is None:
        what = "Longhorn's version cannot be read"
        where = "setting.longhorn.io/current-longhorn-version"
        command = f"{facts.kubectl} get settings.longhorn.io current-longhorn-version"
    return [Finding("longhorn-version", Severity.WARNING, what, where, command)]


def check_pods(facts: Installation) -> list[Finding]:
    """Whether two pods run, so that one can take over; on the loopback of a single control-plane node there is one."""
    where = f"deployment/{PROGRAM}"
    if not facts.pods:
        return [Finding("pods", Severity.ERROR, "no pod of the extender runs", where, _APPLY)]
    unready = [
        Finding("pods", Severity.ERROR, "is not ready", f"pod/{pod.name}", f"{facts.kubectl} describe pod {pod.name}")
        for pod in facts.pods
        if not pod.ready
    ]
    if len(facts.pods) > 1 or facts.pods[0].on_loopback:
        return unready
    what = "there is one pod, so that no other can take over"
    scale = f"{facts.kubectl} scale deployment {PROGRAM} --replicas=2"
    command = f"{facts.kubectl} describe deployment {PROGRAM}; if it wants one: {scale}"
    return [Finding("pods", Severity.WARNING, what, where, command), *unready]


def check_own_needs(facts: Installation) -> list[Finding]:
    """Whether pods that the extender depends on wait for the extender."""
    own = {(facts.namespace, pod.name) for pod in facts.pods}
    findings: list[Finding] = []
    for pod in facts.system_pods:
        where = f"pod/{pod.name} in {pod.namespace}"
        if pod.requests_extender:
            what = "requests longhorn.io/scheduler-extender, so it cannot start while no extender answers"
            command = "remove the resource from its controller"
            findings.append(Finding("own-pods", Severity.ERROR, what, where, command))
        if pod.claims and (pod.namespace, pod.name) in own:
            what = f"mounts the claim {', '.join(pod.claims)}: it would have to answer for itself"
            command = f"remove the volume from deployment/{PROGRAM}"
            findings.append(Finding("own-pods", Severity.ERROR, what, where, command))
    return findings


def check_service(facts: Installation) -> list[Finding]:
    """Whether kube-scheduler has an address to call."""
    if facts.service is not None:
        return []
    return [Finding("service", Severity.ERROR, "there is no Service", f"service/{PROGRAM}", _APPLY)]


def check_leader(facts: Installation) -> list[Finding]:
    """Whether pods, Lease and EndpointSlice name the same leader."""
    lease = facts.lease
    where = f"lease/{PROGRAM}"
    logs = _logs(facts)
    if lease is None or not lease.holder:
        return [Finding("leader", Severity.ERROR, "no process holds the Lease", where, logs)]
    leader = facts.leader
    problems: list[str] = []
    renewed = parse_time(lease.renewed)
    if renewed is None or facts.now - renewed > timedelta(seconds=lease.duration) + _CLOCK_SKEW:
        problems.append(f"{lease.holder} has not renewed the Lease in time")
    if leader is None:
        problems.append(f"the holder {lease.holder} is none of the extender's pods")
    findings = [Finding("leader", Severity.ERROR, what, where, logs) for what in problems]
    return findings + _endpoint_findings(facts, leader)


def _endpoint_findings(facts: Installation, leader: InstalledPod | None) -> list[Finding]:
    where = f"endpointslice/{PROGRAM}"
    addresses = facts.endpoints
    if not addresses:
        # An EndpointSlice takes no loopback address, so that such a leader writes none.
        if leader is not None and leader.on_loopback:
            return []
        what = "names no process, so that kube-scheduler's calls are refused"
        report = facts.leader_report
        command = _logs(facts) if report is None else _command_to_answer(facts, report.refusal)
        return [Finding("leader", Severity.ERROR, what, where, command)]
    problems: list[str] = []
    if len(addresses) > 1:
        problems.append(f"names several processes: {', '.join(addresses)}")
    if leader is not None and leader.address and leader.address not in addresses:
        problems.append(f"names {addresses[0]}, and the leader is at {leader.address}")
    # The leader checks its slice at an interval, and writes it again.
    command = f"{facts.kubectl} delete endpointslice {PROGRAM}"
    return [Finding("leader", Severity.ERROR, what, where, command) for what in problems]


def check_caches(facts: Installation) -> list[Finding]:
    """Whether every process knows the cluster."""
    # With TLS a process answers callers with a certificate, and the doctor has none.
    tls = facts.service is not None and facts.service.tls
    findings: list[Finding] = []
    for name, report in sorted(facts.reports.items()):
        where = f"pod/{name}"
        logs = f"{facts.kubectl} logs {where}"
        if report.unreachable:
            what = f"could not be asked: {report.unreachable}"
            forward = f"{facts.kubectl} port-forward {where} 9504, then doctor --url http://127.0.0.1:9504"
            command = f"{logs}; ask it with a certificate: docs/tls.md" if tls else forward
            findings.append(Finding("caches", Severity.WARNING, what, where, command))
        if report.not_ready:
            findings.append(Finding("caches", Severity.ERROR, f"is not ready: {report.not_ready}", where, logs))
        if report.unreadable:
            what = f"leaves out objects: {_some(report.unreadable)}"
            findings.append(Finding("caches", Severity.WARNING, what, where, "correct the field that is named"))
    return findings


def check_answers(facts: Installation) -> list[Finding]:
    """Whether the leader answers kube-scheduler, by valid settings."""
    leader = facts.leader
    report = facts.leader_report
    # A process may still use the value of before, so the ConfigMap is read, too.
    from_process = report.refused_settings if report is not None else ()
    problems = {text.partition(";")[0]: text for text in (*facts.refused_settings, *from_process)}
    edit = f"{facts.kubectl} edit configmap {PROGRAM}"
    findings = [
        Finding("answers", Severity.WARNING, f"a setting is refused: {problem}", f"configmap/{PROGRAM}", edit)
        for problem in problems.values()
    ]
    if leader is None or report is None:
        findings.append(Finding("answers", Severity.SKIPPED, facts.leader_silence))
    elif not report.answering:
        what = f"leads and does not answer: {report.refusal}"
        command = _command_to_answer(facts, report.refusal)
        findings.append(Finding("answers", Severity.ERROR, what, f"pod/{leader.name}", command))
    return findings


def _command_to_answer(facts: Installation, refusal: str) -> str:
    """Returns what makes a leader answer that does not for this reason."""
    if ENABLED not in refusal:
        return _logs(facts)
    if "ConfigMap" not in refusal:
        return f"set {ENABLED} to true in the ConfigMap {PROGRAM}, and nowhere else"
    return f'{facts.kubectl} patch configmap {PROGRAM} -p \'{{"data":{{"{ENABLED}":"true"}}}}\''


def _logs(facts: Installation) -> str:
    return f"{facts.kubectl} logs -l app.kubernetes.io/name={PROGRAM} --prefix --tail=20"


def check_permissions(facts: Installation) -> list[Finding]:
    """Whether the ServiceAccount may do all that the extender does."""
    if facts.denied is None:
        return [Finding("permissions", Severity.SKIPPED, "permissions could not be asked for")]
    account = next((pod.account for pod in facts.pods if pod.account), PROGRAM)
    where = f"serviceaccount/{account}"
    commands = ((permission, f"{_APPLY}; then {_ask(facts, permission, account)}") for permission in facts.denied)
    return [
        Finding("permissions", Severity.ERROR, f"may not {permission}", where, command)
        for permission, command in commands
    ]


def _ask(facts: Installation, permission: Permission, account: str) -> str:
    kind = f"{permission.resource}.{permission.group}" if permission.group else permission.resource
    name = f"/{permission.name}" if permission.name else ""
    scope = "-A" if permission.everywhere else f"-n {facts.namespace}"
    user = f"system:serviceaccount:{facts.namespace}:{account}"
    return f"kubectl auth can-i {permission.verb} {kind}{name} {scope} --as {user}"


def check_certificate(facts: Installation) -> list[Finding]:
    """Whether the placement guard's certificate is valid, and known to API servers."""
    report = facts.leader_report
    if report is None:
        return [Finding("certificate", Severity.SKIPPED, facts.leader_silence)]
    # Its mode, and not its webhook: a webhook that is missing is one of its problems.
    if report.guard_mode in {"", "off"}:
        return [Finding("certificate", Severity.OK, "the placement guard is off")]
    findings: list[Finding] = []
    problem = report.guard_problem
    if problem:
        ways = [(where, command) for words, where, command in _GUARD_PROBLEMS if words in problem]
        where, command = ways[0] if ways else ("", "{logs}")
        where = where or f"pod/{facts.leader.name if facts.leader is not None else PROGRAM}"
        command = command.format(kubectl=facts.kubectl, logs=_logs(facts))
        findings.append(Finding("certificate", Severity.ERROR, problem, where, command))
    expiry = datetime.fromtimestamp(report.certificate_expiry, UTC)
    if report.certificate_expiry and expiry <= facts.now + _EXPIRY_WARNING:
        expired = expiry <= facts.now
        severity = Severity.ERROR if expired else Severity.WARNING
        what = f"{'has expired' if expired else 'expires'} at {expiry:%Y-%m-%d %H:%M} UTC, and nothing has renewed it"
        findings.append(Finding("certificate", severity, what, f"secret/{_SECRET}", _logs(facts)))
    return findings


def check_guard(facts: Installation) -> list[Finding]:
    """Whether a dry run shows that API servers reach the placement guard."""
    report = facts.leader_report
    trial = facts.guard_trial
    if report is not None and report.guard_mode in {"", "off"}:
        return [Finding(_GUARD, Severity.OK, "the placement guard is off")]
    if report is not None and report.guard_problem:
        return [Finding(_GUARD, Severity.SKIPPED, f"is not asked while the leader says: {report.guard_problem}")]
    if trial is None:
        return [Finding(_GUARD, Severity.SKIPPED, "is not asked: there is no such webhook", _WEBHOOK)]
    if trial.problem:
        what = f"could not be tried: {trial.problem}"
        return [Finding(_GUARD, Severity.WARNING, what, _WEBHOOK, advice_about(trial.problem))]
    if trial.answered:
        return []
    # Nothing says the mode of a leader that could not be asked.
    severity = Severity.ERROR if report is not None else Severity.WARNING
    what = trial.obstacle or "they reach its port, but not by its Service, or do not trust its certificate"
    command = next((command for words, command in _WAYS if words in trial.obstacle), _OTHERWISE)
    return [Finding(_GUARD, severity, f"API servers got no answer to a dry run: {what}", _WEBHOOK, command)]


def _some(texts: tuple[str, ...]) -> str:
    more = len(texts) - _MAX_LISTED
    return "; ".join(texts[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")

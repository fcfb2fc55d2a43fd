"""Checks of the extender itself: versions, pods, leader, caches, permissions, certificate. Each yields what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from scheduler_core.extender.finding import PROGRAM, Finding, Installation, Severity, advice_about, minor_version
from scheduler_core.extender.settings import ENABLED
from scheduler_core.longhorn.timestamps import parse_time
from scheduler_core.model.installation import InstalledPod, Permission

Findings = Iterator[Finding]

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


def check_kubernetes_version(facts: Installation) -> Findings:
    """Whether the extender is tested with this Kubernetes."""
    version = minor_version(facts.kubernetes_version)
    where = f"Kubernetes {facts.kubernetes_version}".strip()
    if version is None:
        yield Finding("kubernetes-version", Severity.WARNING, "the version cannot be read", where, "kubectl version")
    elif version < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        yield Finding(
            "kubernetes-version",
            Severity.ERROR,
            f"Kubernetes {oldest} or newer is needed: the manifests contain a ValidatingAdmissionPolicy",
            where,
            "upgrade Kubernetes",
        )
    elif version not in TESTED_KUBERNETES:
        yield Finding(
            "kubernetes-version", Severity.WARNING, "this version is not tested", where, "see docs/limitations.md"
        )


def check_longhorn_version(facts: Installation) -> Findings:
    """Whether the placement rules of this Longhorn were compared."""
    version = minor_version(facts.longhorn_version)
    where = f"Longhorn {facts.longhorn_version}".strip()
    if version is None:
        yield Finding(
            "longhorn-version",
            Severity.WARNING,
            "Longhorn's version cannot be read",
            "setting.longhorn.io/current-longhorn-version",
            f"{facts.kubectl} get settings.longhorn.io current-longhorn-version",
        )
    elif version not in COMPARED_LONGHORN:
        yield Finding(
            "longhorn-version",
            Severity.WARNING,
            "the placement rules of this version were not compared",
            where,
            "see docs/limitations.md",
        )


def check_pods(facts: Installation) -> Findings:
    """Whether two pods run, so that one can take over; on the loopback of a single control-plane node there is one."""
    if not facts.pods:
        yield Finding("pods", Severity.ERROR, "no pod of the extender runs", f"deployment/{PROGRAM}", _APPLY)
    elif len(facts.pods) == 1 and not facts.pods[0].on_loopback:
        yield Finding(
            "pods",
            Severity.WARNING,
            "there is one pod, so that no other can take over",
            f"deployment/{PROGRAM}",
            f"{facts.kubectl} describe deployment {PROGRAM}; if it wants one: {facts.kubectl} scale deployment {PROGRAM} --replicas=2",
        )
    for pod in facts.pods:
        if not pod.ready:
            yield Finding(
                "pods", Severity.ERROR, "is not ready", f"pod/{pod.name}", f"{facts.kubectl} describe pod {pod.name}"
            )


def check_own_needs(facts: Installation) -> Findings:
    """Whether pods that the extender depends on wait for the extender."""
    own = {pod.name for pod in facts.pods}
    for pod in facts.system_pods:
        is_own = pod.namespace == facts.namespace and pod.name in own
        if pod.requests_extender:
            yield Finding(
                "own-pods",
                Severity.ERROR,
                "requests longhorn.io/scheduler-extender, so it cannot start while no extender answers",
                f"pod/{pod.name} in {pod.namespace}",
                "remove the resource from its controller",
            )
        if is_own and pod.claims:
            yield Finding(
                "own-pods",
                Severity.ERROR,
                f"mounts the claim {', '.join(pod.claims)}: it would have to answer for itself",
                f"pod/{pod.name} in {pod.namespace}",
                f"remove the volume from deployment/{PROGRAM}",
            )


def check_service(facts: Installation) -> Findings:
    """Whether kube-scheduler has an address to call."""
    if facts.service is None:
        yield Finding("service", Severity.ERROR, "there is no Service", f"service/{PROGRAM}", _APPLY)


def check_leader(facts: Installation) -> Findings:
    """Whether pods, Lease and EndpointSlice name the same leader."""
    lease = facts.lease
    where = f"lease/{PROGRAM}"
    logs = _logs(facts)
    if lease is None or not lease.holder:
        yield Finding("leader", Severity.ERROR, "no process holds the Lease", where, logs)
        return
    renewed = parse_time(lease.renewed)
    if renewed is None or facts.now - renewed > timedelta(seconds=lease.duration) + _CLOCK_SKEW:
        yield Finding("leader", Severity.ERROR, f"{lease.holder} has not renewed the Lease in time", where, logs)
    leader = facts.leader
    if leader is None:
        yield Finding(
            "leader", Severity.ERROR, f"the holder {lease.holder} is none of the extender's pods", where, logs
        )
    yield from _endpoint_findings(facts, leader)


def _endpoint_findings(facts: Installation, leader: InstalledPod | None) -> Findings:
    address = leader.address if leader is not None else ""
    where = f"endpointslice/{PROGRAM}"
    # The leader checks its slice at an interval, and writes it again.
    command = f"{facts.kubectl} delete endpointslice {PROGRAM}"
    addresses = facts.endpoints
    # An EndpointSlice takes no loopback address, so that such a leader writes none.
    if not addresses and not (leader is not None and leader.on_loopback):
        report = facts.leader_report
        yield Finding(
            "leader",
            Severity.ERROR,
            "names no process, so that kube-scheduler's calls are refused",
            where,
            _logs(facts) if report is None else _command_to_answer(facts, report.refusal),
        )
    if len(addresses) > 1:
        yield Finding("leader", Severity.ERROR, f"names several processes: {', '.join(addresses)}", where, command)
    if address and addresses and address not in addresses:
        yield Finding("leader", Severity.ERROR, f"names {addresses[0]}, and the leader is at {address}", where, command)


def check_caches(facts: Installation) -> Findings:
    """Whether every process knows the cluster."""
    # With TLS a process answers callers with a certificate, and the doctor has none.
    tls = facts.service is not None and facts.service.tls
    for name, report in sorted(facts.reports.items()):
        where = f"pod/{name}"
        forward = f"{facts.kubectl} port-forward {where} 9504, then doctor --url http://127.0.0.1:9504"
        if report.unreachable:
            yield Finding(
                "caches",
                Severity.WARNING,
                f"could not be asked: {report.unreachable}",
                where,
                f"{facts.kubectl} logs {where}; ask it with a certificate: docs/tls.md" if tls else forward,
            )
        if report.not_ready:
            yield Finding(
                "caches", Severity.ERROR, f"is not ready: {report.not_ready}", where, f"{facts.kubectl} logs {where}"
            )
        if report.unreadable:
            yield Finding(
                "caches",
                Severity.WARNING,
                f"leaves out objects: {_some(report.unreadable)}",
                where,
                "correct the field that is named",
            )


def check_answers(facts: Installation) -> Findings:
    """Whether the leader answers kube-scheduler, by valid settings."""
    leader = facts.leader
    report = facts.leader_report
    # A process may still use the value of before, so the ConfigMap is read, too.
    from_process = report.refused_settings if report is not None else ()
    for problem in {text.partition(";")[0]: text for text in (*facts.refused_settings, *from_process)}.values():
        yield Finding(
            "answers", Severity.WARNING, f"a setting is refused: {problem}", f"configmap/{PROGRAM}",
            f"{facts.kubectl} edit configmap {PROGRAM}",
        )  # fmt: skip
    if leader is None or report is None:
        yield Finding("answers", Severity.SKIPPED, facts.leader_silence)
    elif not report.answering:
        yield Finding(
            "answers", Severity.ERROR, f"leads and does not answer: {report.refusal}", f"pod/{leader.name}",
            _command_to_answer(facts, report.refusal),
        )  # fmt: skip


def _command_to_answer(facts: Installation, refusal: str) -> str:
    """Returns what makes a leader answer that does not for this reason."""
    if ENABLED not in refusal:
        return _logs(facts)
    if "ConfigMap" not in refusal:
        return f"set {ENABLED} to true in the ConfigMap {PROGRAM}, and nowhere else"
    return f'{facts.kubectl} patch configmap {PROGRAM} -p \'{{"data":{{"{ENABLED}":"true"}}}}\''


def _logs(facts: Installation) -> str:
    return f"{facts.kubectl} logs -l app.kubernetes.io/name={PROGRAM} --prefix --tail=20"


def check_permissions(facts: Installation) -> Findings:
    """Whether the ServiceAccount may do all that the extender does."""
    if facts.denied is None:
        yield Finding("permissions", Severity.SKIPPED, "permissions could not be asked for")
        return
    account = next((pod.account for pod in facts.pods if pod.account), PROGRAM)
    for permission in facts.denied:
        yield Finding(
            "permissions", Severity.ERROR, f"may not {permission}", f"serviceaccount/{account}",
            f"{_APPLY}; then {_ask(facts, permission, account)}",
        )  # fmt: skip


def _ask(facts: Installation, permission: Permission, account: str) -> str:
    kind = f"{permission.resource}.{permission.group}" if permission.group else permission.resource
    name = f"/{permission.name}" if permission.name else ""
    scope = "-A" if permission.everywhere else f"-n {facts.namespace}"
    user = f"system:serviceaccount:{facts.namespace}:{account}"
    return f"kubectl auth can-i {permission.verb} {kind}{name} {scope} --as {user}"


def check_certificate(facts: Installation) -> Findings:
    """Whether the placement guard's certificate is valid, and known to API servers."""
    report = facts.leader_report
    if report is None:
        yield Finding("certificate", Severity.SKIPPED, facts.leader_silence)
        return
    # Its mode, and not its webhook: a webhook that is missing is one of its problems.
    if report.guard_mode in {"", "off"}:
        yield Finding("certificate", Severity.OK, "the placement guard is off")
        return
    problem = report.guard_problem
    if problem:
        ways = [(where, command) for words, where, command in _GUARD_PROBLEMS if words in problem]
        where, command = ways[0] if ways else ("", "{logs}")
        yield Finding(
            "certificate",
            Severity.ERROR,
            problem,
            where or f"pod/{facts.leader.name if facts.leader is not None else PROGRAM}",
            command.format(kubectl=facts.kubectl, logs=_logs(facts)),
        )
    if not report.certificate_expiry:
        return
    expiry = datetime.fromtimestamp(report.certificate_expiry, UTC)
    if expiry <= facts.now + _EXPIRY_WARNING:
        expired = expiry <= facts.now
        severity = Severity.ERROR if expired else Severity.WARNING
        what = f"{'has expired' if expired else 'expires'} at {expiry:%Y-%m-%d %H:%M} UTC, and nothing has renewed it"
        yield Finding("certificate", severity, what, f"secret/{_SECRET}", _logs(facts))


def check_guard(facts: Installation) -> Findings:
    """Whether a dry run shows that API servers reach the placement guard."""
    report = facts.leader_report
    trial = facts.guard_trial
    if report is not None and report.guard_mode in {"", "off"}:
        yield Finding(_GUARD, Severity.OK, "the placement guard is off")
    elif report is not None and report.guard_problem:
        yield Finding(_GUARD, Severity.SKIPPED, f"is not asked while the leader says: {report.guard_problem}")
    elif trial is None:
        yield Finding(_GUARD, Severity.SKIPPED, "is not asked: there is no such webhook", _WEBHOOK)
    elif trial.problem:
        yield Finding(
            _GUARD, Severity.WARNING, f"could not be tried: {trial.problem}", _WEBHOOK, advice_about(trial.problem)
        )
    elif not trial.answered:
        # Nothing says the mode of a leader that could not be asked.
        severity = Severity.ERROR if report is not None else Severity.WARNING
        what = trial.obstacle or "they reach its port, but not by its Service, or do not trust its certificate"
        command = next((command for words, command in _WAYS if words in trial.obstacle), _OTHERWISE)
        yield Finding(_GUARD, severity, f"API servers got no answer to a dry run: {what}", _WEBHOOK, command)


def _some(texts: tuple[str, ...]) -> str:
    more = len(texts) - _MAX_LISTED
    return "; ".join(texts[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")

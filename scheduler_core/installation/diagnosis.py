"""Every check of an installation, in the order of the output.

Data flow: the facts that a check reads → its test → findings, one line for each, with the command that mends it

The checks of the extender itself are here: versions, pods, leader, caches, permissions, certificate; and those of Longhorn: settings and
StorageClasses that undo what the extender decides. Which permissions are asked for stands in `app/extender/doctor_reader.py`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from scheduler_core.installation import scheduler_checks as scheduler
from scheduler_core.installation.facts import (
    PROGRAM,
    Finding,
    Findings,
    GuardTrial,
    Installation,
    ProcessReport,
    Severity,
    advice_about,
    list_some,
    minor_version,
)
from scheduler_core.longhorn import cluster, volume_validation
from scheduler_core.longhorn.csi_driver import DRIVER, parameter_tags
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.installation import ENABLED, HeldLease, InstalledPod, Permission, ServiceAddress
from scheduler_core.structs import Struct, replace

OLDEST_KUBERNETES = (1, 30)  # docs/limitations.md has the same versions
TESTED_KUBERNETES = ((1, 35), (1, 36), (1, 37))
COMPARED_LONGHORN = ((1, 10), (1, 11), (1, 12), (1, 13))
# The leader renews its certificate long before.
_EXPIRY_WARNING = timedelta(days=7)
# Clocks of the administrator's machine and of the leader's node differ.
_CLOCK_SKEW = timedelta(seconds=60)
_WEBHOOK = "mutatingwebhookconfiguration/longhorn-scheduler-extender-placement-guard"
_DISAGREE = "have --placement-guard-port, containerPort and targetPort agree, on a free port"
# What an API server's error about its own call says, and what mends it: docs/placement-guard.md, "API servers do not reach it".
_WAYS = {
    "refused": _DISAGREE,
    "no route|unreachable": 'a network plugin whose pods the control plane reaches (own pod network), or placement-guard: "off"',
    "timeout|deadline": "allow TCP port 9507 from the control plane to the pods: NetworkPolicy, or the provider's firewall",
    "": "see docs/placement-guard.md, API servers do not reach it",
}
_APPLY = "apply the manifests or the chart of this version: docs/installation.md"
_LOGS = f"{{kubectl}} logs -l app.kubernetes.io/name={PROGRAM} --prefix --tail=20"
_SECRET = f"{PROGRAM}-placement-guard"
# What the leader says about its guard, the object that it is about, and what mends it: docs/placement-guard.md, "Its certificate".
_GUARD_PROBLEMS = (
    ("apply manifests/base", _WEBHOOK, _APPLY),
    ("cannot listen", "", _DISAGREE),
    ("there is no address", "", "set POD_IP as manifests/base does"),
    ("cannot be written", f"secret/{_SECRET}", f"{_APPLY}; the ServiceAccount must be allowed to patch it"),
    ("the serving certificate", f"secret/{_SECRET}", _LOGS),
    (
        f"Secret {_SECRET}",
        f"secret/{_SECRET}",
        f"{{kubectl}} patch secret {_SECRET} --type merge -p '{{\"data\":null}}'",
    ),
)
_GUARD_OFF = Finding(Severity.OK, "the placement guard is off")


def check_kubernetes_version(kubernetes_version: str) -> Findings:
    """Whether the extender is tested with this Kubernetes."""
    version = minor_version(kubernetes_version)
    where = f"Kubernetes {kubernetes_version}".strip()
    if version is None:
        yield Finding(Severity.WARNING, "the version cannot be read", where, "kubectl version")
    elif version < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        what = f"Kubernetes {oldest} or newer is needed: the manifests contain a ValidatingAdmissionPolicy"
        yield Finding(Severity.ERROR, what, where, "upgrade Kubernetes")
    elif version not in TESTED_KUBERNETES:
        yield Finding(Severity.WARNING, "this version is not tested", where, "see docs/limitations.md")


def check_longhorn_version(longhorn_version: str) -> Findings:
    """Whether the placement rules of this Longhorn were compared."""
    version = minor_version(longhorn_version)
    if version is None:
        command = "{kubectl} get settings.longhorn.io current-longhorn-version"
        where = "setting.longhorn.io/current-longhorn-version"
        yield Finding(Severity.WARNING, "Longhorn's version cannot be read", where, command)
    elif version not in COMPARED_LONGHORN:
        what = "the placement rules of this version were not compared"
        yield Finding(Severity.WARNING, what, f"Longhorn {longhorn_version}", "see docs/limitations.md")


def check_pods(pods: Sequence[InstalledPod]) -> Findings:
    """Whether two pods run, so that one can take over; on the loopback of a single control-plane node there is one."""
    where = f"deployment/{PROGRAM}"
    if not pods:
        yield Finding(Severity.ERROR, "no pod of the extender runs", where, _APPLY)
    if len(pods) == 1 and not pods[0].on_loopback:
        what = "there is one pod, so that no other can take over"
        scale = f"{{kubectl}} scale deployment {PROGRAM} --replicas=2"
        command = f"{{kubectl}} describe deployment {PROGRAM}; if it wants one: {scale}"
        yield Finding(Severity.WARNING, what, where, command)
    for pod in pods:
        if not pod.ready:
            yield Finding(Severity.ERROR, "is not ready", f"pod/{pod.name}", f"{{kubectl}} describe pod {pod.name}")


def check_own_pods(pods: Sequence[InstalledPod], system_pods: Sequence[InstalledPod]) -> Findings:
    """Whether pods that the extender depends on wait for the extender."""
    own = {pod.key for pod in pods}
    for pod in system_pods:
        where = f"pod/{pod.name} in {pod.namespace}"
        if pod.requests_extender:
            what = "requests longhorn.io/scheduler-extender, so it cannot start while no extender answers"
            yield Finding(Severity.ERROR, what, where, "remove the resource from its controller")
        if pod.claims and pod.key in own:
            what = f"mounts the claim {', '.join(pod.claims)}: it would have to answer for itself"
            yield Finding(Severity.ERROR, what, where, f"remove the volume from deployment/{PROGRAM}")


def check_service(service: ServiceAddress | None) -> Findings:
    if service is None:
        yield Finding(Severity.ERROR, "there is no Service", f"service/{PROGRAM}", _APPLY)


def check_leader(
    lease: HeldLease | None,
    now: datetime,
    leader: InstalledPod | None,
    endpoints: Sequence[str],
    leader_report: ProcessReport | str,
) -> Findings:
    """Whether pods, Lease and EndpointSlice name the same leader."""
    where = f"lease/{PROGRAM}"
    if lease is None or not lease.holder:
        yield Finding(Severity.ERROR, "no process holds the Lease", where, _LOGS)
        return
    renewed = cluster.parse_time(lease.renewed)
    if renewed is None or now - renewed > timedelta(seconds=lease.duration) + _CLOCK_SKEW:
        yield Finding(Severity.ERROR, f"{lease.holder} has not renewed the Lease in time", where, _LOGS)
    if leader is None:
        yield Finding(Severity.ERROR, f"the holder {lease.holder} is none of the extender's pods", where, _LOGS)
    where = f"endpointslice/{PROGRAM}"
    # The leader checks its slice at an interval, and writes it again.
    command = f"{{kubectl}} delete endpointslice {PROGRAM}"
    # An EndpointSlice takes no loopback address, so that such a leader writes none.
    if not endpoints and not (leader is not None and leader.on_loopback):
        what = "names no process, so that kube-scheduler's calls are refused"
        mend = _LOGS if isinstance(leader_report, str) else _way_to_answer(leader_report.refusal)
        yield Finding(Severity.ERROR, what, where, mend)
    if len(endpoints) > 1:
        yield Finding(Severity.ERROR, f"names several processes: {', '.join(endpoints)}", where, command)
    if endpoints and leader is not None and leader.address and leader.address not in endpoints:
        what = f"names {endpoints[0]}, and the leader is at {leader.address}"
        yield Finding(Severity.ERROR, what, where, command)


def check_caches(reports: Mapping[str, ProcessReport], service: ServiceAddress | None) -> Findings:
    """Whether every process knows the cluster."""
    for name, report in sorted(reports.items()):
        where = f"pod/{name}"
        logs = f"{{kubectl}} logs {where}"
        if report.unreachable:
            command = f"{{kubectl}} port-forward {where} 9504, then doctor --url http://127.0.0.1:9504"
            if service is not None and service.tls:
                # A process answers callers with a certificate, and the doctor has none.
                command = f"{logs}; ask it with a certificate: docs/tls.md"
            yield Finding(Severity.WARNING, f"could not be asked: {report.unreachable}", where, command)
        if report.not_ready:
            yield Finding(Severity.ERROR, f"is not ready: {report.not_ready}", where, logs)
        if report.unreadable:
            what = f"leaves out objects: {list_some(report.unreadable, '; ')}"
            yield Finding(Severity.WARNING, what, where, "correct the field that is named")


def check_answers(
    refused_settings: Sequence[str], leader: InstalledPod | None, leader_report: ProcessReport | str
) -> Findings:
    """Whether the leader answers kube-scheduler, by valid settings."""
    # A process may still use the value of before, so the ConfigMap is read, too.
    from_process = () if isinstance(leader_report, str) else leader_report.refused_settings
    refusals = {text.partition(";")[0]: text for text in (*refused_settings, *from_process)}
    edit = f"{{kubectl}} edit configmap {PROGRAM}"
    for text in refusals.values():
        yield Finding(Severity.WARNING, f"a setting is refused: {text}", f"configmap/{PROGRAM}", edit)
    if leader is None or isinstance(leader_report, str):
        yield Finding(Severity.SKIPPED, str(leader_report))
    elif not leader_report.answering:
        what = f"leads and does not answer: {leader_report.refusal}"
        yield Finding(Severity.ERROR, what, f"pod/{leader.name}", _way_to_answer(leader_report.refusal))


def _way_to_answer(refusal: str) -> str:
    if ENABLED not in refusal:
        return _LOGS
    if "ConfigMap" not in refusal:
        return f"set {ENABLED} to true in the ConfigMap {PROGRAM}, and nowhere else"
    return f'{{kubectl}} patch configmap {PROGRAM} -p \'{{"data":{{"{ENABLED}":"true"}}}}\''


def check_permissions(denied: Sequence[Permission] | None, pods: Sequence[InstalledPod], namespace: str) -> Findings:
    """Whether the ServiceAccount may do all that the extender does."""
    if denied is None:
        yield Finding(Severity.SKIPPED, "permissions could not be asked for")
    account = next((pod.account for pod in pods if pod.account), PROGRAM)
    for permission in denied or ():
        kind = f"{permission.resource}.{permission.group}" if permission.group else permission.resource
        name = f"/{permission.name}" if permission.name else ""
        scope = "-A" if permission.everywhere else f"-n {namespace}"
        user = f"system:serviceaccount:{namespace}:{account}"
        ask = f"kubectl auth can-i {permission.verb} {kind}{name} {scope} --as {user}"
        command = f"{_APPLY}; then {ask}"
        yield Finding(Severity.ERROR, f"may not {permission}", f"serviceaccount/{account}", command)


def check_certificate(leader: InstalledPod | None, leader_report: ProcessReport | str, now: datetime) -> Findings:
    """Whether the placement guard's certificate is valid, and known to API servers."""
    if leader is None or isinstance(leader_report, str):
        yield Finding(Severity.SKIPPED, str(leader_report))
        return
    # Its mode, and not its webhook: a webhook that is missing is one of its findings.
    if leader_report.guard_mode in {"", "off"}:
        yield _GUARD_OFF
        return
    text = leader_report.guard_problem
    if text:
        ways = ((where, command) for words, where, command in _GUARD_PROBLEMS if words in text)
        where, command = next(ways, ("", _LOGS))
        yield Finding(Severity.ERROR, text, where or f"pod/{leader.name}", command)
    expiry = datetime.fromtimestamp(leader_report.certificate_expiry, UTC)
    if leader_report.certificate_expiry and expiry <= now + _EXPIRY_WARNING:
        expired = expiry <= now
        severity = Severity.ERROR if expired else Severity.WARNING
        what = f"{'has expired' if expired else 'expires'} at {expiry:%Y-%m-%d %H:%M} UTC, and nothing has renewed it"
        yield Finding(severity, what, f"secret/{_SECRET}", _LOGS)


def check_guard(leader_report: ProcessReport | str, guard_trial: GuardTrial | None) -> Findings:
    """Whether a dry run shows that API servers reach the placement guard."""
    report = None if isinstance(leader_report, str) else leader_report
    if report is not None and report.guard_mode in {"", "off"}:
        yield _GUARD_OFF
    elif report is not None and report.guard_problem:
        yield Finding(Severity.SKIPPED, f"is not asked while the leader says: {report.guard_problem}")
    elif guard_trial is None:
        yield Finding(Severity.SKIPPED, "is not asked: there is no such webhook", _WEBHOOK)
    elif guard_trial.problem:
        what = f"could not be tried: {guard_trial.problem}"
        yield Finding(Severity.WARNING, what, _WEBHOOK, advice_about(guard_trial.problem))
    elif not guard_trial.answered:
        # Nothing says the mode of a leader that could not be asked.
        severity = Severity.ERROR if report is not None else Severity.WARNING
        what = guard_trial.obstacle or "they reach its port, but not by its Service, or do not trust its certificate"
        command = next(command for words, command in _WAYS.items() if re.search(words, guard_trial.obstacle))
        yield Finding(severity, f"API servers got no answer to a dry run: {what}", _WEBHOOK, command)


CAPACITY_TRACKING = "csi-storage-capacity-tracking"
# Longhorn writes it from a ConfigMap, whenever it is missing.
_CHARTS_CLASS = "longhorn"
# Longhorn names it in the claims that it creates for volumes that exist.
_STATIC_CLASS = "default-longhorn-static-storage-class"


def check_settings(settings: Mapping[str, str]) -> Findings:
    """Whether Longhorn's settings keep what is promised available."""
    known = Settings.read(settings)
    for name, fault in sorted(known.faults.items()):
        what = f"cannot be read, so Longhorn places nothing: {fault}"
        yield _setting_finding(name, Severity.ERROR, what, "VALUE")
    percentage = known.storage_over_provisioning_percentage
    if percentage > 100:
        what = f"is {percentage}: more than a disk holds is promised, so that volumes may fill it"
        yield _setting_finding("storage-over-provisioning-percentage", Severity.WARNING, what, "100")
    if known.storage_minimal_available_percentage <= 0:
        what = "is 0: volumes are placed on disks without available space"
        yield _setting_finding("storage-minimal-available-percentage", Severity.WARNING, what, "25")


def check_capacity_tracking(
    settings: Mapping[str, str],
    tracks_capacity: bool,  # noqa: FBT001 # a fact
) -> Findings:
    """Whether kube-scheduler drops nodes before it calls the extender."""
    setting = settings.get(CAPACITY_TRACKING)
    drops = "kube-scheduler drops nodes by older figures before it calls the extender"
    if setting == "true":
        yield _setting_finding(CAPACITY_TRACKING, Severity.WARNING, f"is true: {drops}", "false")
    elif tracks_capacity:
        because = f"although the setting {CAPACITY_TRACKING} is {setting}"
        command = "{kubectl} rollout restart deployment longhorn-driver-deployer, which writes it by the setting"
        if setting is None:
            # From v1.10.0 on; the setting is off by default since v1.11.2.
            because = "as this version of Longhorn always writes it"
            command = f"upgrade Longhorn to v1.11.2 or newer, where the setting {CAPACITY_TRACKING} decides, and is off"
        yield Finding(Severity.WARNING, f"storageCapacity is true, {because}: {drops}", f"csidriver/{DRIVER}", command)


def _setting_finding(name: str, severity: Severity, what: str, value: str) -> Finding:
    command = f'{{kubectl}} patch settings.longhorn.io {name} --type=merge -p \'{{"value": "{value}"}}\''
    return Finding(severity, what, f"setting.longhorn.io/{name}", command)


def check_storage_classes(longhorn_classes: Sequence[kube.StorageClass], settings: Mapping[str, str]) -> Findings:
    """Whether volumes wait until their pod has a node."""
    static = settings.get(_STATIC_CLASS, "longhorn-static")
    what = "binds at once: Longhorn places its volumes before their pods, and the extender cannot help"
    for entry in longhorn_classes:
        places_nothing = entry.name == static != _CHARTS_CLASS
        if not entry.waits_for_consumer and not places_nothing:
            command = _create_again(entry, "volumeBindingMode: WaitForFirstConsumer", "volumeBindingMode")
            yield Finding(Severity.WARNING, what, f"storageclass/{entry.name}", command)


def check_tags(longhorn_classes: Sequence[kube.StorageClass], longhorn_nodes: Sequence[longhorn.Node]) -> Findings:
    """Whether nodes and disks have the tags that StorageClasses select."""
    node_tags = {tag for node in longhorn_nodes for tag in node.tags}
    disk_tags = {tag for node in longhorn_nodes for disk in node.disks for tag in disk.tags}
    for entry in longhorn_classes:
        for key, kind, tags in (("nodeSelector", "node", node_tags), ("diskSelector", "disk", disk_tags)):
            for tag in parameter_tags(entry.parameters, key):
                valid = volume_validation.is_tag(tag)
                if valid and tag in tags:
                    continue
                command = f"add the tag to a {kind}: {{kubectl}} edit nodes.longhorn.io NODE"
                if not valid:
                    value = f"default{key[0].upper()}{key[1:]}.selector"
                    command = _create_again(entry, f"a {key} that has neither blanks nor empty tags", value)
                which = f"no {kind} {'has' if valid else 'can have'}"
                what = f"{key} has the tag {tag!r}, which {which}: its volumes fit nowhere"
                yield Finding(Severity.WARNING, what, f"storageclass/{entry.name}", command)


def _create_again(entry: kube.StorageClass, correct: str, value: str) -> str:
    if entry.name != _CHARTS_CLASS:
        return f"create it again with {correct}"
    return (
        f"give it {correct} where Longhorn takes it from, or Longhorn writes the old one again: the chart's value persistence.{value}, or "
        "without the chart the ConfigMap longhorn-storageclass"
    )


class Check(Struct, frozen=True):
    """One check. Its test is given nothing but the facts that it reads, so they alone say what mends a mistake."""

    name: str  # in lower case with hyphens
    success: str  # what is true if the test finds nothing
    reads: str  # names of facts: attributes of `Installation`, and parameters of the test
    test: Callable[..., Findings]


# fmt: off
_FACTS = Check(
    "facts", "everything could be read", "unknown",
    lambda unknown: (Finding(Severity.WARNING, f"could not be read: {text}", command=advice_about(text)) for text in unknown),
)
INSTALLED = (
    _FACTS,
    Check("kubernetes-version", "Kubernetes' version is tested", "kubernetes_version", check_kubernetes_version),
    Check("longhorn-version", "Longhorn's rules were compared", "longhorn_version", check_longhorn_version),
    Check("pods", "the extender's pods are ready", "pods", check_pods),
    Check("own-pods", "no pod of the system waits for the extender", "pods system_pods", check_own_pods),
    Check("service", "kube-scheduler has an address to call", "service", check_service),
    Check("leader", "pods, Lease and EndpointSlice agree", "lease now leader endpoints leader_report", check_leader),
    Check("caches", "every process knows the cluster", "reports service", check_caches),
    Check("answers", "the leader answers", "refused_settings leader leader_report", check_answers),
    Check("permissions", "the ServiceAccount has every permission", "denied pods namespace", check_permissions),
    Check("certificate", "the placement guard's certificate is valid", "leader leader_report now", check_certificate),
    Check("placement-guard", "the placement guard answers API servers", "leader_report guard_trial", check_guard),
    Check("registration", "kube-scheduler calls the extender", "probe scheduler_name observes", scheduler.check_registration),
    Check("ask-policy", "pods with claims are sent to the extender",
          "admitted probes claiming_pods scheduler_name kubernetes_version", scheduler.check_ask_policy),
    Check("requests", "requests have names of nodes", "leader leader_report", scheduler.check_requests),
    Check("resource", "kube-scheduler does not look for the resource", "failures probe", scheduler.check_resource),
    Check("events", "no event of the last hour tells of a failed call", "failures", scheduler.check_events),
    Check("longhorn-settings", "Longhorn keeps space available", "settings", check_settings),
    Check("capacity-tracking", "kube-scheduler drops no node beforehand", "settings tracks_capacity", check_capacity_tracking),
    Check("storage-classes", "volumes wait for their pods", "longhorn_classes settings", check_storage_classes),
    Check("tags", "every selected tag exists", "longhorn_classes longhorn_nodes", check_tags),
)
UNINSTALLED = (
    _FACTS,
    Check("uninstall", "kube-scheduler does not call the extender", "probes scheduler_name", scheduler.check_registration_removal),
    Check("ask-policy", "no policy sends pods to the extender", "admitted scheduler_name kubernetes_version", scheduler.check_policy_removal),
    Check("requesting-pods", "no pod needs the extender's resource or kube-scheduler", "requesting_pods second_scheduler_pods",
          scheduler.check_requesting_pods),
)
# fmt: on


def diagnose(facts: Installation, checks: Iterable[Check] = INSTALLED) -> list[Finding]:
    """Runs the checks in order. A check that finds nothing has one finding that says so."""
    kubectl = f"kubectl -n {facts.namespace}"
    findings: list[Finding] = []
    for check in checks:
        read = {name: getattr(facts, name) for name in check.reads.split()}
        for finding in list(check.test(**read)) or [Finding(Severity.OK, check.success)]:
            command = finding.command.replace("{kubectl}", kubectl)
            findings.append(replace(finding, check=check.name, command=command))
    return findings


def is_well(findings: Iterable[Finding]) -> bool:
    return not {Severity.WARNING, Severity.ERROR} & {finding.severity for finding in findings}

"""The KubeSchedulerConfiguration that registers the extender, by platform, and the steps that install it. It is the
file of kube-scheduler-config with the address and the kubeconfig of a cluster; docs/kube-scheduler.md explains the
lines.
"""

from enum import StrEnum
from typing import Any

from scheduler_core.installation.facts import PROGRAM, minor_version
from scheduler_core.model import constraints, installation
from scheduler_core.structs import Struct

SECOND_SCHEDULER = "longhorn-scheduler"
_FILE_NAME = "kube-scheduler-config.yaml"
CLIENT_CERTIFICATE = f"{PROGRAM}-client"
_CONFIG_FLAG = "--config"
_KUBECONFIG_FLAG = "--kubeconfig"
# MutatingAdmissionPolicy: v1beta1 since the first, v1 since the second.
_OLDEST_POLICY = (1, 34)
_STABLE_POLICY = (1, 36)


class Platform(StrEnum):
    """Where kube-scheduler runs."""

    KUBEADM = "kubeadm"
    RKE2 = "rke2"
    K3S = "k3s"
    TALOS = "talos"
    SECOND_SCHEDULER = "second-scheduler"


class SentPods(StrEnum):
    """Which pods kube-scheduler sends to the extender."""

    REQUESTING = "requesting"  # those that request its resource
    ALL = "all"  # every pod, so that none is scheduled while no extender answers


class SchedulerFlags(Struct, frozen=True):
    """What the flags of a running kube-scheduler name; "" stands for a flag that is not set."""

    kubeconfig: str = ""
    config: str = ""


class Registration(Struct, frozen=True):
    """How the extender is registered."""

    platform: Platform
    url_prefix: str  # where kube-scheduler calls it; with https kube-scheduler shows a certificate
    kubeconfig: str  # kube-scheduler's credentials; "" for those of its pod
    pods: SentPods = SentPods.REQUESTING
    namespace: str = "longhorn-system"  # of the extender, for the Lease of a second scheduler
    scores: bool = False  # whether it is asked for scores, too

    @property
    def tls(self) -> bool:
        return self.url_prefix.startswith("https://")


_FOLDERS = {
    Platform.KUBEADM: "/etc/kubernetes/config",
    Platform.RKE2: "/etc/rancher/rke2/scheduler",
    Platform.K3S: "/etc/rancher/k3s",
}
DEFAULT_KUBECONFIGS = {
    Platform.KUBEADM: "/etc/kubernetes/scheduler.conf",
    Platform.RKE2: "/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig",
    Platform.K3S: "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig",
}


REGISTERED = frozenset(_FOLDERS)
"""Platforms whose kube-scheduler reads a file."""


def configuration_path(platform: Platform) -> str:
    return f"{_FOLDERS[platform]}/{_FILE_NAME}" if platform in _FOLDERS else ""


def client_folder(platform: Platform) -> str:
    """The folder of kube-scheduler's client certificate, key and trusted authority."""
    folder = _FOLDERS.get(platform)
    return f"{folder}/{PROGRAM}" if folder is not None else f"/etc/{CLIENT_CERTIFICATE}"


def configuration(registration: Registration) -> dict[str, Any]:
    """The KubeSchedulerConfiguration."""
    is_second = registration.platform is Platform.SECOND_SCHEDULER
    # Talos sets it, and a second scheduler has a ServiceAccount.
    kubeconfig = {"kubeconfig": registration.kubeconfig} if registration.platform in REGISTERED else {}
    election = {"resourceName": SECOND_SCHEDULER, "resourceNamespace": registration.namespace} if is_second else {}
    profiles = {"profiles": [{"schedulerName": SECOND_SCHEDULER}]} if is_second else {}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        # qps and burst are kube-scheduler's defaults.
        "clientConnection": {**kubeconfig, "qps": 50, "burst": 100},
        "leaderElection": {"leaderElect": True, **election},
        **profiles,
        "percentageOfNodesToScore": 100,
        "extenders": _extenders(registration),
    }


def printed_configuration(registration: Registration) -> dict[str, Any]:
    """The configuration as the platform takes it: for Talos a part of the machine configuration."""
    config = configuration(registration)
    return {"cluster": {"scheduler": {"config": config}}} if registration.platform is Platform.TALOS else config


def _extenders(registration: Registration) -> list[dict[str, Any]]:
    tls: dict[str, Any] = {}
    if registration.tls:
        folder = client_folder(registration.platform)
        files = {"caFile": f"{folder}/ca.crt", "certFile": f"{folder}/tls.crt", "keyFile": f"{folder}/tls.key"}
        # The name in the certificate, also where the address is called.
        tls = {"tlsConfig": {"serverName": f"{PROGRAM}.{registration.namespace}.svc", **files}}
    managed = {"managedResources": [{"name": constraints.EXTENDER_RESOURCE, "ignoredByScheduler": True}]}
    scores = {"prioritizeVerb": "prioritize", "weight": 1} if registration.scores else {}
    extender = {
        "urlPrefix": registration.url_prefix,
        "filterVerb": "filter",
        **scores,
        "preemptVerb": "preempt",
        "enableHTTPS": registration.tls,
        **tls,
        "nodeCacheCapable": True,
        "ignorable": False,
        "httpTimeout": "3s",
    }
    if registration.platform is not Platform.SECOND_SCHEDULER and registration.pods is SentPods.REQUESTING:
        return [{**extender, **managed}]
    # An entry without verbs is never called. It lets pods be scheduled that request the resource.
    return [extender, {"urlPrefix": registration.url_prefix, "nodeCacheCapable": True, **managed}]


def certificate_steps(registration: Registration) -> tuple[str, ...]:
    """What to do about certificates before `steps`, one step per line; nothing without TLS."""
    if not registration.tls:
        return ()
    folder = client_folder(registration.platform)
    if registration.platform is Platform.SECOND_SCHEDULER:
        return (f"Mount the Secret {CLIENT_CERTIFICATE} at {folder} (docs/tls.md).",)
    secret = f"kubectl -n {registration.namespace} get secret {CLIENT_CERTIFICATE}"
    return (
        f"Copy the Secret {CLIENT_CERTIFICATE} to {folder} on every control-plane node, and again whenever it is renewed:",
        f"  install -d -m 0700 {folder}",
        "  for file in ca.crt tls.crt tls.key; do",
        f"    {secret} -o go-template='{{{{index .data \"'$file'\" | base64decode}}}}' > {folder}/$file",
        "  done",
    )


def policy_folder(kubernetes_version: str, scheduler_name: str) -> str:
    """The overlay that sends pods with claims here, "" where Kubernetes has no policies; "" counts as a new version."""
    version = minor_version(kubernetes_version)
    if version is not None and version < _OLDEST_POLICY:
        return ""
    policy = "ask-policy" if scheduler_name == installation.DEFAULT_SCHEDULER else "scheduler-name-policy"
    variant = "-v1beta1" if version is not None and version < _STABLE_POLICY else ""
    return f"manifests/overlays/{policy}{variant}"


def apply_policy(kubernetes_version: str, scheduler_name: str) -> str:
    """The command that sends pods with claims to the extender or, where no policy can, what to do instead."""
    folder = policy_folder(kubernetes_version, scheduler_name)
    if folder:
        return f"kubectl apply -k {folder}"
    second = scheduler_name != installation.DEFAULT_SCHEDULER
    by_hand = f"schedulerName: {scheduler_name}" if second else f"{constraints.EXTENDER_RESOURCE} among its resources"
    return f"longhorn-extender scheduler-config --pods all, or in each pod: {by_hand}"


def steps(platform: Platform, pods: SentPods, kubernetes_version: str = "") -> tuple[str, ...]:
    """What to do with the file, and afterwards, one step per line, with commands indented. Without a version, it names
    the policies of all versions.
    """
    is_second = platform is Platform.SECOND_SCHEDULER
    ask: list[str] = []
    if is_second or pods is SentPods.REQUESTING:
        name = SECOND_SCHEDULER if is_second else installation.DEFAULT_SCHEDULER
        intro = "Once every kube-scheduler runs with it, let pods with claims ask:"
        ask = [
            "Then let pods with claims use it:" if is_second else intro,
            f"  {apply_policy(kubernetes_version, name)}",
        ]
        if not kubernetes_version:
            folder = policy_folder("", name).rpartition("/")[2]
            ask.append(f"({folder}-v1beta1 on Kubernetes 1.34 and 1.35; older versions have no such policies)")
    return (*_registration_steps(platform), *ask, "Check:", "  longhorn-extender doctor")


def _registration_steps(platform: Platform) -> tuple[str, ...]:
    path = configuration_path(platform)
    folder = path.rpartition("/")[0]
    if platform is Platform.KUBEADM:
        return (
            f"On every control-plane node, write the file to {path} and edit the static pod:",
            f"  install -D -m 0600 {_FILE_NAME} {path}",
            "  vi /etc/kubernetes/manifests/kube-scheduler.yaml",
            "In spec.containers[0].command add:",
            f"  - {_CONFIG_FLAG}={path}",
            "in spec.containers[0].volumeMounts:",
            f"  - {{name: scheduler-config, mountPath: {folder}, readOnly: true}}",
            "in spec.volumes:",
            f"  - {{name: scheduler-config, hostPath: {{path: {folder}, type: Directory}}}}",
            "The kubelet restarts kube-scheduler. So that `kubeadm upgrade` keeps it, put the same into kubeadm's configuration:",
            "  kubectl -n kube-system edit configmap kubeadm-config",
        )
    if platform in (Platform.RKE2, Platform.K3S):
        is_k3s = platform is Platform.K3S
        # kube-scheduler is a process of k3s, and a pod in RKE2.
        mount = "" if is_k3s else f"'kube-scheduler-extra-mount+:' '  - {folder}:{folder}:ro' "
        settings = f"/etc/rancher/{platform}/config.yaml.d"
        return (
            f"On every server, write the file and a configuration of {'k3s' if is_k3s else 'RKE2'}, and restart it:",
            f"  install -D -m 0600 {_FILE_NAME} {path}",
            f"  mkdir -p {settings}",
            f"  printf '%s\\n' 'kube-scheduler-arg+:' '  - config={path}' {mount}> {settings}/{PROGRAM}.yaml",
            f"  systemctl restart {'k3s' if is_k3s else 'rke2-server'}",
        )
    if platform is Platform.TALOS:
        return (
            "Up to Talos 1.13, patch the machine configuration of every control-plane node with it:",
            "  talosctl --nodes ADDRESS patch machineconfig --patch @patch.yaml",
            "From Talos 1.14 on, put what is below `config` into the field `config` of the document KubeSchedulerConfig.",
        )
    return (
        "The overlay has this file already, with the Service's name; apply it in a kustomization of your own:",
        "  kubectl apply -k manifests/overlays/second-scheduler",
    )


def flags(arguments: list[str]) -> SchedulerFlags:
    """What a kube-scheduler's command line names."""
    values = {_CONFIG_FLAG: "", _KUBECONFIG_FLAG: ""}
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in values:
            values[name] = value if equals else "".join(arguments[index + 1 : index + 2])
    return SchedulerFlags(values[_KUBECONFIG_FLAG], values[_CONFIG_FLAG])

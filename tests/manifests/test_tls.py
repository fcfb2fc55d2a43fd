"""manifests/tls and its two overlays, and manifests/overlays/network-policy: ports, files and names are those of the program."""

from typing import Any

import pytest
import yaml

from scheduler_core.leadership.endpoint_slice import EXTENDER_WITH_TLS, PLACEMENT_GUARD
from tests.manifests.kustomize import build
from tests.manifests.load import (
    CONFIGS,
    MANIFESTS,
    NAME,
    NAMESPACE,
    by_name,
    documents,
    flags_of,
    only,
    pod_spec,
    yaml_blocks,
)

SECRET = f"{NAME}-tls"
CERTIFICATES = by_name(documents(MANIFESTS / "overlays/tls-cert-manager/certificates.yaml"))
POLICY = only("NetworkPolicy", MANIFESTS / "overlays/network-policy")["spec"]
CONTROL_PLANE = "CONTROL-PLANE-NETWORK"


@pytest.mark.e2e
def test_the_overlay_changes_the_pods_and_the_name_of_the_services_port() -> None:
    """Nothing else of the base; the leader names the port of its EndpointSlice alike, or kube-proxy leads nowhere."""
    base = by_name(build("base"))
    overlay = by_name(build("overlays/tls"))
    assert overlay.keys() == base.keys()
    assert {key for key, entry in base.items() if overlay[key] != entry} == {("Deployment", NAME), ("Service", NAME)}
    (port,) = overlay["Service", NAME]["spec"]["ports"]
    assert (port["name"], port["port"]) == (EXTENDER_WITH_TLS.port_name, EXTENDER_WITH_TLS.port)


@pytest.mark.e2e
def test_the_pods_read_the_mounted_secret_and_probes_have_a_port_of_their_own() -> None:
    spec = pod_spec(by_name(build("overlays/tls")))
    (container,) = spec["containers"]
    flags = dict(argument.split("=") for argument in container["args"] if "=" in argument)
    assert flags.keys() <= flags_of("serve")
    (mount,) = container["volumeMounts"]
    (volume,) = spec["volumes"]
    assert {flags[f"--{name}"] for name in ("tls-cert-file", "tls-private-key-file", "client-ca-file")} == {
        f"{mount['mountPath']}/{file}" for file in ("tls.crt", "tls.key", "ca.crt")
    }
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    assert (volume["secret"]["secretName"], volume["secret"]["defaultMode"]) == (SECRET, 0o440)
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]
    (probe_port,) = [port for port in container["ports"] if port["name"] == "probes"]
    assert flags["--probe-port"] == str(probe_port["containerPort"])
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert probes == [{"path": "/healthz", "port": "probes"}] * 3


def certificate(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = CERTIFICATES["Certificate", name]["spec"]
    return spec


def test_cert_manager_makes_what_the_pods_mount_for_the_name_that_kube_scheduler_verifies() -> None:
    (config,) = documents(CONFIGS / "recommended-managed-tls.yaml")
    server = certificate(SECRET)
    assert server["secretName"] == SECRET
    assert server["dnsNames"] == [config["extenders"][0]["tlsConfig"]["serverName"]]
    assert {entry["metadata"]["namespace"] for entry in CERTIFICATES.values()} == {NAMESPACE}
    assert {kind for kind, _ in CERTIFICATES} == {"Issuer", "Certificate"}


def test_the_network_policy_lets_kube_scheduler_api_servers_and_prometheus_in() -> None:
    labels = only("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert POLICY["podSelector"] == {"matchLabels": labels}
    assert POLICY["policyTypes"] == ["Ingress"]
    ports = [{port["port"] for port in rule["ports"]} for rule in POLICY["ingress"]]
    assert ports == [{9504, PLACEMENT_GUARD.port, 9508}, {9504}, {9504}]
    second = only("Deployment", MANIFESTS / "overlays/second-scheduler", name="longhorn-scheduler")
    (peer,) = POLICY["ingress"][1]["from"]
    assert peer == {"podSelector": {"matchLabels": second["spec"]["template"]["metadata"]["labels"]}}


def test_the_network_policy_has_to_be_given_the_control_planes_network() -> None:
    """No value fits every cluster, and a wrong one would keep kube-scheduler out; the guide sets it."""
    (peer,) = POLICY["ingress"][0]["from"]
    assert peer == {"ipBlock": {"cidr": CONTROL_PLANE}}
    (shown,) = [block for block in yaml_blocks("docs/installation.md") if "network-policy" in block]
    (patch,) = yaml.safe_load(shown)["patches"]
    (operation,) = yaml.safe_load(patch["patch"])
    assert operation["path"] == "/spec/ingress/0/from/0/ipBlock/cidr"
    assert patch["target"] == {"kind": "NetworkPolicy", "name": NAME}

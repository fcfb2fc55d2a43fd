"""`longhorn-extender scheduler-config`: its file, and what to do with it.

The file is on standard output, the steps are on standard error.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.app.cli.test_explain_live import run_in_thread
from tests.manifests.load import CONFIGS, MANIFESTS, documents, with_scores
from tests.worlds.command_line import Result, Run
from tests.worlds.fake_api import FakeApi, Object, failing, serve

NAME = "longhorn-scheduler-extender"
ADDRESS = "http://10.43.12.34:9504"
SERVICES = "/api/v1/namespaces/longhorn-system/services"
OWN_PODS = "/api/v1/namespaces/longhorn-system/pods"
STATIC_PODS = "/api/v1/namespaces/kube-system/pods"
SECOND = MANIFESTS / "overlays/second-scheduler/config/kube-scheduler.yaml"


def service(cluster_ip: str = "10.43.12.34", port_name: str = "http") -> Object:
    metadata = {"name": NAME, "namespace": "longhorn-system"}
    return {"metadata": metadata, "spec": {"clusterIP": cluster_ip, "ports": [{"name": port_name, "port": 9504}]}}


def static_pod(*command: str) -> Object:
    metadata = {"name": "kube-scheduler-cp-1", "namespace": "kube-system", "labels": {"component": "kube-scheduler"}}
    return {"metadata": metadata, "spec": {"containers": [{"command": ["kube-scheduler", *command]}]}}


@asynccontextmanager
async def cluster(
    folder: Path, pods: list[Object], *services: Object, version: str = "v1.36.3", extender: Sequence[Object] = ()
) -> AsyncIterator[str]:
    """Serves what the command reads, and yields the kubeconfig.

    That is the Service, the pods of kube-scheduler and the extender, and the version.
    """
    api = FakeApi()
    api.add(STATIC_PODS, *pods)
    api.add(SERVICES, *services)
    api.add(OWN_PODS, *extender)

    async def handle(request: web.Request) -> web.StreamResponse:
        is_version = request.path == "/version"
        return web.json_response({"gitVersion": version}) if is_version else await api.handle(request)

    async with serve(handle, folder) as kubeconfig:
        yield str(kubeconfig)


async def print_config(
    run: Run, folder: Path, platform: str, *services: Object, options: Sequence[str] = (), **world: Any
) -> Result:
    """What the command prints for a cluster; `world` has what `cluster` takes."""
    async with cluster(folder, world.pop("pods", []), *services, **world) as kubeconfig:
        return await run_in_thread(
            run, "scheduler-config", "--platform", platform, "--kubeconfig", kubeconfig, *options
        )


def expected_file(name: str, kubeconfig: str, *, scores: bool = False) -> Any:
    """A file of kube-scheduler-config with a cluster's address and kubeconfig."""
    config = yaml.safe_load(with_scores(CONFIGS / name) if scores else (CONFIGS / name).read_text())
    config["clientConnection"]["kubeconfig"] = kubeconfig
    for extender in config["extenders"]:
        extender["urlPrefix"] = ADDRESS
    return config


@pytest.mark.parametrize(
    ("platform", "kubeconfig"),
    [
        ("kubeadm", "/etc/kubernetes/scheduler.conf"),
        ("rke2", "/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig"),
        ("k3s", "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig"),
    ],
)
@pytest.mark.parametrize(("pods", "name"), [("requesting", "recommended-managed.yaml"), ("all", "recommended.yaml")])
@pytest.mark.parametrize("scores", [False, True], ids=["filter", "scores"])
def test_it_prints_the_recommended_files(
    run: Run, *, platform: str, kubeconfig: str, pods: str, name: str, scores: bool
) -> None:
    options = ["--pods", pods, "--url-prefix", ADDRESS, *(["--scores"] if scores else [])]
    result = run("scheduler-config", "--platform", platform, *options)
    assert (result.code, yaml.safe_load(result.out)) == (0, expected_file(name, kubeconfig, scores=scores))
    path = result.out.splitlines()[0].split()[1]
    assert f"config={path}" in result.err
    assert ("manifests/overlays/ask-policy" in result.err) is (pods == "requesting")


def test_for_talos_it_prints_a_patch_of_the_machine_configuration(run: Run) -> None:
    result = run("scheduler-config", "--platform", "talos", "--url-prefix", ADDRESS)
    expected = expected_file("recommended-managed.yaml", "")
    del expected["clientConnection"]["kubeconfig"]
    assert (result.code, yaml.safe_load(result.out)) == (0, {"cluster": {"scheduler": {"config": expected}}})
    assert "talosctl --nodes ADDRESS patch machineconfig --patch @patch.yaml" in result.err


def test_a_second_schedulers_file_is_that_of_its_overlay(run: Run) -> None:
    result = run("scheduler-config", "--platform", "second-scheduler")
    assert (result.code, yaml.safe_load(result.out)) == (0, documents(SECOND)[0])
    assert "kubectl apply -k manifests/overlays/scheduler-name-policy" in result.err


def expected_with_tls() -> Any:
    config = expected_file("recommended-managed-tls.yaml", "/etc/kubernetes/scheduler.conf")
    config["extenders"][0]["urlPrefix"] = ADDRESS.replace("http:", "https:")
    return config


async def test_with_tls_it_prints_the_file_for_it(tmp_path: Path, run: Run) -> None:
    by_name = await print_config(run, tmp_path, "kubeadm", service(port_name="https"))
    by_flag = await print_config(run, tmp_path, "kubeadm", service(), options=["--tls"])
    assert yaml.safe_load(by_name.out) == yaml.safe_load(by_flag.out) == expected_with_tls()
    folder = expected_with_tls()["extenders"][0]["tlsConfig"]["caFile"].removesuffix("/ca.crt")
    assert by_name.err.splitlines()[0].startswith(f"Copy the Secret longhorn-scheduler-extender-client to {folder} ")


def test_a_second_scheduler_with_tls_reads_its_certificate_from_a_mounted_secret(run: Run) -> None:
    result = run("scheduler-config", "--platform", "second-scheduler", "--tls")
    config = yaml.safe_load(result.out)
    called, unused = config["extenders"]
    assert called["urlPrefix"] == unused["urlPrefix"] == f"https://{NAME}.longhorn-system.svc:9504"
    assert called.pop("tlsConfig") == {
        "serverName": f"{NAME}.longhorn-system.svc",
        "caFile": f"/etc/{NAME}-client/ca.crt",
        "certFile": f"/etc/{NAME}-client/tls.crt",
        "keyFile": f"/etc/{NAME}-client/tls.key",
    }
    assert called.pop("enableHTTPS") is True
    (plain,) = documents(SECOND)
    assert config.keys() == plain.keys()
    assert called.items() - {("urlPrefix", called["urlPrefix"])} <= plain["extenders"][0].items()


@pytest.mark.parametrize(
    "flag", [["--kubeconfig=/somewhere/scheduler.conf"], ["--v=2", "--kubeconfig", "/somewhere/scheduler.conf"]]
)
async def test_address_and_kubeconfig_are_read_from_the_cluster(tmp_path: Path, run: Run, flag: list[str]) -> None:
    result = await print_config(run, tmp_path, "kubeadm", service(), pods=[static_pod(*flag)])
    assert yaml.safe_load(result.out) == expected_file("recommended-managed.yaml", "/somewhere/scheduler.conf")


LOOPBACK = ("serve", "--host", "127.0.0.1", "--port", "9505")


def own_pod(*arguments: str, host_network: bool = True, **metadata: Any) -> Object:
    """A pod of the extender that listens on port 9505."""
    labels = {"app.kubernetes.io/name": NAME}
    container = {"args": list(arguments), "ports": [{"name": "http", "containerPort": 9505}]}
    return {
        "metadata": {"name": "one", "namespace": "longhorn-system", "labels": labels, **metadata},
        "spec": {"containers": [container], "hostNetwork": host_network},
    }


@pytest.mark.parametrize(
    ("pod", "port_name", "address"),
    [
        (own_pod(*LOOPBACK), "http", "http://127.0.0.1:9505"),
        (own_pod("serve", "--host=127.0.0.1"), "http", "http://127.0.0.1:9505"),
        (own_pod(*LOOPBACK), "https", "https://127.0.0.1:9505"),
        (own_pod("serve"), "http", ADDRESS),
        (own_pod(*LOOPBACK, host_network=False), "http", ADDRESS),
        (own_pod(*LOOPBACK, deletionTimestamp="2026-01-01T00:00:00Z"), "http", ADDRESS),
    ],
    ids=["loopback", "one argument", "TLS", "every address of the host", "pod network", "a pod that ends"],
)
async def test_an_extender_on_its_nodes_loopback_is_called_there(
    tmp_path: Path, run: Run, pod: Object, port_name: str, address: str
) -> None:
    """It listens there by the host-network overlay. No process listens behind the Service's clusterIP then."""
    result = await print_config(run, tmp_path, "kubeadm", service(port_name=port_name), extender=[pod])
    assert yaml.safe_load(result.out)["extenders"][0]["urlPrefix"] == address


def test_the_host_network_overlay_has_these_arguments() -> None:
    (kustomization,) = documents(MANIFESTS / "overlays/host-network/kustomization.yaml")
    spec = yaml.safe_load(kustomization["patches"][0]["patch"])["spec"]["template"]["spec"]
    assert spec["hostNetwork"] is True
    assert spec["containers"][0]["args"][:3] == list(LOOPBACK[:3])


async def test_without_the_right_to_read_pods_the_service_is_called(tmp_path: Path, run: Run) -> None:
    api = FakeApi()
    api.add(SERVICES, service())

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/pods"):
            return await failing(403, "no", "Forbidden")(request)
        return web.json_response({"gitVersion": "v1.36.3"}) if request.path == "/version" else await api.handle(request)

    async with serve(handle, tmp_path) as kubeconfig:
        result = await run_in_thread(run, "scheduler-config", "--platform", "k3s", "--kubeconfig", str(kubeconfig))
    assert yaml.safe_load(result.out)["extenders"][0]["urlPrefix"] == ADDRESS


async def test_an_address_of_ipv6_is_in_brackets(tmp_path: Path, run: Run) -> None:
    result = await print_config(run, tmp_path, "k3s", service("fd00::9"))
    config = yaml.safe_load(result.out)
    assert config["extenders"][0]["urlPrefix"] == "http://[fd00::9]:9504"
    assert config["clientConnection"]["kubeconfig"].startswith("/var/lib/rancher/k3s/")


@pytest.mark.parametrize(
    ("version", "step"),
    [
        ("v1.36.3", "kubectl apply -k manifests/overlays/ask-policy"),
        ("v1.35.4+rke2r1", "kubectl apply -k manifests/overlays/ask-policy-v1beta1"),
        ("v1.33.1", "longhorn-extender scheduler-config --pods all, or in each pod: longhorn.io/scheduler-extender"),
    ],
)
async def test_the_policy_is_that_of_the_clusters_version(tmp_path: Path, run: Run, version: str, step: str) -> None:
    result = await print_config(run, tmp_path, "k3s", service(), version=version)
    lines = [line.strip() for line in result.err.splitlines() if "ask-policy" in line or "in each pod" in line]
    assert len(lines) == 1
    assert lines[0].startswith(step)
    assert lines[0].endswith("-v1beta1") is step.endswith("-v1beta1")


def test_without_a_cluster_the_policy_of_each_version_is_named(run: Run) -> None:
    result = run("scheduler-config", "--platform", "k3s", "--url-prefix", ADDRESS)
    assert "  kubectl apply -k manifests/overlays/ask-policy\n" in result.err
    assert "ask-policy-v1beta1 on Kubernetes 1.34 and 1.35" in result.err


async def test_flags_override_what_is_read(tmp_path: Path, run: Run) -> None:
    pods = [static_pod("--kubeconfig=/a")]
    options = ["--scheduler-kubeconfig", "/b"]
    result = await print_config(run, tmp_path, "kubeadm", service(), pods=pods, options=options)
    assert yaml.safe_load(result.out)["clientConnection"]["kubeconfig"] == "/b"


async def test_a_configuration_that_is_there_already_is_named(tmp_path: Path, run: Run) -> None:
    """Its other settings would be lost."""
    result = await print_config(run, tmp_path, "kubeadm", service(), pods=[static_pod("--config=/mine.yaml")])
    assert (result.code, "already reads /mine.yaml" in result.err) == (0, True)


@pytest.mark.parametrize("services", [[service("")], [service("None")], []], ids=["headless", "None", "no Service"])
async def test_a_service_without_an_address_is_bad_input(tmp_path: Path, run: Run, services: list[Object]) -> None:
    result = await print_config(run, tmp_path, "k3s", *services)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "install the extender first" in result.err

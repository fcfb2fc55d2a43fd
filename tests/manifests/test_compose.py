"""The compose stack: least privilege, ports on loopback, mounts that exist, and parts that fit together."""

import json
import re
import shutil
import subprocess
import tomllib
from typing import Any

import pytest

from devcluster.programs import NAMESPACE, SERVICE
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD
from tests.manifests.load import ROOT, documents

(COMPOSE,) = documents(ROOT / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CANDIDATES = ("extender-1", "extender-2")
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROMETHEUS = ROOT / "devcluster/compose/prometheus.yaml"
(SCRAPES,) = documents(PROMETHEUS)
(DATA_SOURCES,) = documents(ROOT / "devcluster/compose/grafana-datasources.yaml")
(DASHBOARDS,) = documents(ROOT / "devcluster/compose/grafana-dashboards.yaml")

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())
each_candidate = pytest.mark.parametrize("name", CANDIDATES)


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Returns what a service mounts: the path in the container, by the source."""
    return {source: path for source, path, *_ in (mount.split(":") for mount in service.get("volumes", []))}


def options(name: str) -> dict[str, str]:
    command, *words = SERVICES[name]["command"]
    assert command == "serve"
    return dict(zip(words[::2], words[1::2], strict=True))


@each_service
def test_containers_have_no_privileges(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("network_mode", "service:cluster") == "service:cluster"
    assert not {"privileged", "user", "pid", "cap_add"} & service.keys()


def test_candidates_of_one_host_serve_the_placement_guard_on_ports_of_their_own() -> None:
    variables = [SERVICES[name]["environment"] for name in CANDIDATES]
    ports = [each.get("LONGHORN_EXTENDER_PLACEMENT_GUARD_PORT", str(PLACEMENT_GUARD.port)) for each in variables]
    assert len(set(ports)) == len(CANDIDATES)
    assert not any("LONGHORN_EXTENDER_PLACEMENT_GUARD" in each for each in variables)


@each_service
def test_ports_are_open_on_loopback_only(service: dict[str, Any]) -> None:
    """Callers are not authenticated."""
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@each_service
def test_mounts_exist_and_files_are_read_only(service: dict[str, Any]) -> None:
    """Docker would create a missing folder, empty and owned by root."""
    for mount in service.get("volumes", []):
        source, _, *mode = mount.split(":")
        if source.startswith("./"):
            assert (ROOT / source).exists()
            assert mode == ["ro"]
        else:
            assert source in COMPOSE["volumes"]


@each_service
def test_every_service_has_a_health_check(service: dict[str, Any]) -> None:
    """`docker compose ps` tells which part is at fault."""
    check = service["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "start_period"} <= check.keys()


@each_service
def test_images_have_a_version(service: dict[str, Any]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if "build" in service:
        assert service["image"].endswith(f":{version}")
        assert f" AS {service['build']['target']}\n" in DOCKERFILE
    else:
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])


def test_the_snapshot_has_a_profile_of_its_own() -> None:
    (name,) = (name for name, service in SERVICES.items() if "profiles" in service)
    service = SERVICES[name]
    assert service["ports"] == ["127.0.0.1:9504:9504"]
    assert service["volumes"] == ["./examples/mixed-cluster:/snapshot:ro"]
    assert (ROOT / "examples/mixed-cluster/snapshot.yaml").is_file()
    assert '"/snapshot/snapshot.yaml"' in DOCKERFILE


@each_candidate
def test_a_candidate_uses_the_account_that_the_cluster_makes(name: str) -> None:
    service = SERVICES[name]
    account = f"/run/cluster/kubeconfigs/{NAMESPACE}.{SERVICE}.kubeconfig"
    assert options(name)["--kubeconfig"] == account
    assert f"--kubeconfig={account}" in SERVICES["cluster"]["healthcheck"]["test"]
    assert service["depends_on"] == {"cluster": {"condition": "service_healthy"}}
    assert mounts(service)["cluster"] == mounts(SERVICES["cluster"])["cluster"] == "/run/cluster"


@each_candidate
def test_a_candidate_is_reached_at_the_clusters_address(name: str) -> None:
    """The leader writes its address into the Service's EndpointSlice, and both share the cluster's network."""
    service = SERVICES[name]
    assert service["network_mode"] == "service:cluster"
    assert service["environment"]["POD_NAME"] == name
    assert service["environment"]["POD_IP"] == SERVICES["cluster"]["networks"]["default"]["ipv4_address"]
    assert any(options(name)["--port"] in word for word in service["healthcheck"]["test"])


def test_the_cluster_leaves_the_candidates_and_prometheus_to_their_services() -> None:
    """Each part is a service that an administrator can stop by itself."""
    command = SERVICES["cluster"]["command"]
    assert command[command.index("--candidates") + 1] == "0"
    assert "--no-prometheus" in command
    assert command[command.index("--directory") + 1] == "/run/cluster"


def test_prometheus_scrapes_every_candidate() -> None:
    """They share the network of `cluster`, so the ports tell them apart."""
    (job,) = SCRAPES["scrape_configs"]
    targets = {entry["labels"]["instance"]: entry["targets"] for entry in job["static_configs"]}
    assert targets == {name: [f"cluster:{options(name)['--port']}"] for name in CANDIDATES}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_its_configuration() -> None:
    done = subprocess.run(["promtool", "check", "config", PROMETHEUS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_grafana_shows_the_dashboard_of_the_manifests() -> None:
    grafana = SERVICES["grafana"]
    (provider,) = DASHBOARDS["providers"]
    dashboard = f"{provider['options']['path']}/dashboard.json"
    assert mounts(grafana)["./manifests/monitoring/dashboard.json"] == dashboard
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboard
    (source,) = DATA_SOURCES["datasources"]
    variables = json.loads((ROOT / "manifests/monitoring/dashboard.json").read_text())["templating"]["list"]
    assert source["type"] in {variable["query"] for variable in variables if variable["type"] == "datasource"}
    host, port = re.fullmatch(r"http://([a-z]+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
    assert f"127.0.0.1:{port}:{port}" in SERVICES[host]["ports"]


def test_every_base_image_has_a_version() -> None:
    stages = set(re.findall(r" AS (\S+)$", DOCKERFILE, re.MULTILINE))
    arguments = dict(re.findall(r"^ARG ([A-Z]+_IMAGE)=(\S+)$", DOCKERFILE, re.MULTILINE))
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) + re.findall(r"--from=(\S+)", DOCKERFILE)
    assert {image for image in images if image not in stages} == {f"${{{name}}}" for name in arguments}
    assert all(re.search(r":v?\d+\.\d+", image) for image in arguments.values())


def test_the_default_image_is_the_product() -> None:
    stage = re.search(r" AS extender\n(.*?)\n\n", DOCKERFILE, re.DOTALL)
    assert DOCKERFILE.endswith("\nFROM extender\n")
    assert stage is not None
    assert "devcluster" not in stage[1]
    assert re.findall(r"--from=(\S+)", stage[1]) == ["build"]
    assert "USER 65532:65532" in stage[1]

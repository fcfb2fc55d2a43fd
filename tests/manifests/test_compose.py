"""The compose stack: least privilege, ports on loopback, and mounts that exist."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.manifests.load import ROOT, documents

(COMPOSE,) = documents(ROOT / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES.keys())


@each_service
def test_containers_have_no_privileges(service: dict[str, Any]) -> None:
    """They are read-only, without capabilities, and run as the image's unprivileged user."""
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "user", "network_mode", "pid", "cap_add"} & service.keys()


@each_service
def test_ports_are_open_on_loopback_only(service: dict[str, Any]) -> None:
    """Callers are not authenticated."""
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@each_service
def test_mounts_exist_and_are_read_only(service: dict[str, Any]) -> None:
    """Docker would create a missing folder, empty and owned by root."""
    for mount in service.get("volumes", []):
        source, _, mode = mount.split(":")
        assert (ROOT / source).is_dir()
        assert mode == "ro"


@each_service
def test_images_are_built_with_the_projects_version_as_tag(service: dict[str, Any]) -> None:
    """No image is pulled with a tag that may change."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert service["image"].endswith(f":{version}")
    target = service["build"].get("target", "")
    assert not target or f" AS {target}\n" in DOCKERFILE


def test_without_a_profile_only_the_example_is_served() -> None:
    """`docker compose up` serves what `make run` serves, at the same address."""
    (default,) = (name for name, service in SERVICES.items() if "profiles" not in service)
    service = SERVICES[default]
    assert service["ports"] == ["127.0.0.1:9504:9504"]
    assert service["volumes"] == ["./examples/mixed-cluster:/snapshot:ro"]
    assert (ROOT / "examples/mixed-cluster/snapshot.yaml").is_file()
    assert '"/snapshot/snapshot.yaml"' in DOCKERFILE


def test_every_base_image_has_a_version() -> None:
    """No image but the file's own stages is without a version."""
    stages = set(re.findall(r" AS (\S+)$", DOCKERFILE, re.MULTILINE))
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) + re.findall(r"--from=(\S+)", DOCKERFILE)
    assert all(image in stages or re.search(r":v?\d+\.\d+", image) for image in images)


def test_the_default_image_is_the_product() -> None:
    """The last stage has neither compilers nor the local cluster."""
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "devcluster" not in last
    assert re.findall(r"--from=(\S+)", last) == ["build"]
    assert "USER 65532:65532" in last

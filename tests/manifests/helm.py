"""Runs the helm that was built for the tests, and renders the chart."""

import json
import subprocess
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.build import helm
from devcluster.chart import CHART
from devcluster.process import child_environment
from tests.manifests.load import NAMESPACE, Built, by_name, parse

RELEASE = "longhorn-scheduler-extender"
# One rendering of the chart for each set of values, which tests share.
_rendered: dict[str, str] = {}


class Helm:
    """The program, with a folder of its own for what it stores on this machine. Without a kubeconfig it can render, and nothing else."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        program = helm()
        if program is None:
            pytest.skip("helm is not built: make controlplane")
        self._program = program
        self._environment = {f"HELM_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        self._environment["KUBECONFIG"] = str(kubeconfig or folder / "no-kubeconfig")

    def command(self, *arguments: str) -> list[str]:
        """A command line, in Longhorn's namespace unless it names another."""
        namespace = [] if "--namespace" in arguments else ["--namespace", NAMESPACE]
        return [str(self._program), *arguments, *namespace]

    @property
    def environment(self) -> dict[str, str]:
        return child_environment(self._environment)

    def run(self, *arguments: str, check: bool = True, values: Mapping[str, Any] | None = None) -> str:
        """Runs a command; returns its output, and what it says about errors without `check`."""
        more = ["--values", "-"] if values is not None else []
        done = subprocess.run(
            self.command(*arguments, *more),
            input=yaml.safe_dump(dict(values)) if values is not None else "",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout if check else done.stdout + done.stderr

    def render(self, values: Mapping[str, Any] | None = None, *options: str, tests: bool = False) -> Built:
        """The objects that an installation with these values creates."""
        arguments = ["template", RELEASE, str(CHART), *options, *([] if tests else ["--skip-tests"])]
        key = json.dumps([arguments, values or {}])
        if key not in _rendered:
            _rendered[key] = self.run(*arguments, values=values or {})
        rendered = parse(_rendered[key])
        objects = by_name(rendered)
        assert len(objects) == len(rendered), "two objects have one name"
        return objects

    def refusal(self, values: Mapping[str, Any], *options: str) -> str:
        """Why nothing is rendered with these values."""
        output = self.run("template", RELEASE, str(CHART), *options, check=False, values=values)
        assert "kind: Deployment" not in output
        return output


def write_secret(folder: Path, secret: Mapping[str, Any]) -> Path:
    """Writes a Secret's files as the kubelet mounts them; returns their folder."""
    target: Path = folder / secret["metadata"]["name"]
    target.mkdir(exist_ok=True)
    for name, value in secret["data"].items():
        (target / name).write_bytes(b64decode(value))
    return target

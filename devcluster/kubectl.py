"""Runs the kubectl that was built with the control plane on one cluster."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import KubectlError
from devcluster.process import child_environment

KUBECTL_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs kubectl as administrator, independent of the user's own configuration.

    Attributes:
        program: the executable
        kubeconfig: the credentials
        cache: the folder of kubectl's cache: one per cluster, because it caches by address, and ports are used again
    """

    program: Path
    kubeconfig: Path
    cache: Path

    def run(self, arguments: tuple[str, ...], standard_input: str | None, *, check: bool, seconds: float) -> str:
        """Runs kubectl and returns its output (see DevCluster.kubectl)."""
        command = [str(self.program), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}", *arguments]
        try:
            done = subprocess.run(  # noqa: S603 # an argument list, no shell
                command,
                input=standard_input or "",
                capture_output=True,
                text=True,
                env=child_environment({"KUBERC": "off"}),
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"kubectl {' '.join(arguments)}: no end within {seconds:g} s") from error
        if not check:
            return done.stdout + done.stderr
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

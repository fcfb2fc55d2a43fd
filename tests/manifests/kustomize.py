"""Builds the kustomization with a policy file that docs/http-api.md shows."""

import re
import shutil
from pathlib import Path
from typing import Any, Final

from devcluster.build import KUBECTL, ensure_built
from devcluster.kubectl import Kubectl
from tests.manifests.load import MANIFESTS, NAME, ROOT, parse

ROLE: Final = f"{NAME}-policy"
BASES: Final = ("base", "overlays/host-network")
POLICY: Final = ROOT / "examples/policies/zones-and-longhorn.json"
# The objects of a kustomization by kind and name; the name of the ConfigMap is without its hash.
BuiltObjects = dict[tuple[str, str], dict[str, Any]]


def build(folder: Path, kustomization: str) -> BuiltObjects:
    """Builds a kustomization, in a folder next to manifests/, with a policy file."""
    shutil.copytree(MANIFESTS, folder / "manifests")
    overlay = folder / "mine"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(kustomization)
    shutil.copy(POLICY, overlay / "policy.json")
    kubectl = Kubectl(ensure_built() / KUBECTL, folder / "no-kubeconfig", folder / "cache")
    text = kubectl.run(("kustomize", str(overlay)), None, check=True, seconds=60)
    return {
        (entry["kind"], re.sub(rf"^({ROLE})-\w+$", r"\1", entry["metadata"]["name"])): entry for entry in parse(text)
    }


def documented_kustomization(base: str) -> str:
    (text,) = re.findall(r"```yaml\n# my-policy/[^\n]*\n(.*?)```", (ROOT / "docs/http-api.md").read_text(), re.S)
    assert all(f"../manifests/{entry}" in text for entry in BASES)
    return re.sub(r"- \.\./manifests/base\b.*", f"- ../manifests/{base}", str(text))

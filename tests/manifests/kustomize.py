"""Builds kustomizations: the folders of manifests/, and an administrator's own next to a copy of it."""

import re
import shutil
from pathlib import Path
from typing import Any

from devcluster.build import KUBECTL, ensure_built
from devcluster.kubectl import Kubectl
from tests.manifests.load import MANIFESTS, NAME, ROOT, Built, by_name, parse, yaml_blocks

ROLE = f"{NAME}-policy"
BASES = ("base", "overlays/host-network")
POLICY = ROOT / "examples/policies/zones-and-longhorn.json"


def kustomize(folder: Path) -> str:
    # It talks to no server.
    kubectl = Kubectl(ensure_built() / KUBECTL, ROOT / "no-kubeconfig", ROOT / "no-cache")
    return kubectl.run(("kustomize", str(folder)), None, check=True, seconds=60)


def build(*folders: str) -> list[dict[str, Any]]:
    """The objects of folders of manifests/."""
    return [entry for folder in folders for entry in parse(kustomize(MANIFESTS / folder))]


def build_own(folder: Path, kustomization: str, **files: str) -> list[dict[str, Any]]:
    """The objects of a kustomization that lies, with more files, in a folder next to manifests/."""
    shutil.copytree(MANIFESTS, folder / "manifests")
    own = folder / "mine"
    own.mkdir()
    for name, text in {"kustomization.yaml": kustomization, **files}.items():
        (own / name).write_text(text)
    return parse(kustomize(own))


def documented_kustomization(document: str) -> str:
    """The kustomization of an administrator's own that a page shows."""
    (text,) = yaml_blocks(document, "my-cluster/")
    return text


def policy_kustomization(base: str) -> str:
    """The kustomization with a policy file that docs/http-api.md shows, for one of the bases that it names."""
    (text,) = yaml_blocks("docs/http-api.md", "my-policy/")
    assert all(f"../manifests/{entry}" in text for entry in BASES)
    return re.sub(r"- \.\./manifests/base\b.*", f"- ../manifests/{base}", text)


def build_with_policy(folder: Path, kustomization: str) -> Built:
    """The objects by kind and name; the name of the ConfigMap is without its hash."""
    built = by_name(build_own(folder, kustomization, **{"policy.json": POLICY.read_text()}))
    return {(kind, re.sub(rf"^({ROLE})-\w+$", r"\1", name)): entry for (kind, name), entry in built.items()}

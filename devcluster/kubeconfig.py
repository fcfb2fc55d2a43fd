"""Writes kubeconfig files; certificates and tokens are inside, so that a program needs one file only."""

import base64
import json
from pathlib import Path
from typing import Any

from devcluster.pki import CertificatePair, write_private


def write_for_client(path: Path, server: str, authority: Path, pair: CertificatePair) -> Path:
    return _write(path, server, authority, {
        "client-certificate-data": _base64(pair.certificate),
        "client-key-data": _base64(pair.key),
    })  # fmt: skip


def write_for_token(path: Path, server: str, authority: Path, token: str, namespace: str) -> Path:
    """Writes a kubeconfig with a token, readable by this user only. `namespace` is its default namespace."""
    return _write(path, server, authority, {"token": token}, namespace)


def _write(path: Path, server: str, authority: Path, user: dict[str, str], namespace: str = "default") -> Path:
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "devcluster", "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}
        ],
        "users": [{"name": path.stem, "user": user}],
        "contexts": [
            {"name": "devcluster", "context": {"cluster": "devcluster", "user": path.stem, "namespace": namespace}}
        ],
        "current-context": "devcluster",
    }
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, json.dumps(content, indent=1).encode())  # JSON is YAML
    return path


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()

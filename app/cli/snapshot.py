"""`longhorn-extender snapshot`: the objects of the live cluster as a file, for a bug report, or as an input of `explain` and `serve`."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.cluster_source import cluster_objects
from app.cli.options import ContextOption, KubeconfigOption, LonghornNamespaceOption
from app.cli.render import json_text, print_line, print_result, yaml_text
from app.settings import DEFAULT_NAMESPACE
from scheduler_core.errors import CoreError
from scheduler_core.model.quantity import format_count

# Texts that YAML 1.2 reads as floating-point numbers.
_FLOAT = re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$")


class SnapshotFormat(StrEnum):
    """The format of a snapshot file."""

    YAML = "yaml"
    JSON = "json"


def snapshot(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
    output: Annotated[SnapshotFormat, typer.Option("--output", "-o", help="How to print.")] = SnapshotFormat.YAML,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Write here instead of to standard output.")
    ] = None,
) -> None:
    """Write what decisions read of the cluster: nodes, pods, claims, volumes, and Longhorn's objects.

    Only the fields that decide something are written: no environment variables, secrets, commands or annotations.
    `serve --snapshot` and `explain --snapshot` read the file.
    """
    objects = cluster_objects(kubeconfig, context, longhorn_namespace, progress=sys.stderr.isatty() or file is not None)
    object_list = {"apiVersion": "v1", "kind": "List", "items": objects}
    text = _format(object_list, output)
    if file is None:
        print_result(text)
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise CoreError(f"{file}: cannot be written: {error.strerror}") from error
    print_line(f"wrote {format_count(len(objects), 'object')} to {file}", err=True)


def _format(object_list: dict[str, Any], output: SnapshotFormat) -> str:
    if output is SnapshotFormat.JSON:
        return json_text(object_list, indent=1)
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Also quotes texts such as 1.5e3: PyYAML takes them for texts, but YAML 1.2, which kubectl and this program
        read, for numbers.
        """

    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
    return yaml_text(partial(yaml.dump, Dumper=Dumper), object_list)

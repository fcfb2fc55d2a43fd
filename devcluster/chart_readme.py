"""Makes the chart's README from values.yaml, in the form of helm-docs: a table of keys with type, default and description. A
comment right above a key is its description.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_TYPES = {bool: "bool", int: "int", str: "string", list: "list", dict: "object"}
# Their keys are Kubernetes' own.
_OF_KUBERNETES = frozenset({"affinity", "nodeSelector", "resources"})
_LONGEST_DEFAULT = 60
_TEXT = """\
# {name}

{description}

Version {version}. Made from values.yaml by devcluster/chart.py; change it there.

The chart is installed in Longhorn's namespace, and needs an image that you have built and pushed. Begin by observing, which
refuses nothing; `helm install` then prints the next steps.

```console
$ helm install {name} ./{name}-{version}.tgz --namespace longhorn-system \\
    --set image.repository=registry.example.com/{name} --set settings.enforcement=observe
```

`helm push {name}-{version}.tgz oci://registry.example.com/charts` puts it into a registry; then its name is
`oci://registry.example.com/charts/{name}`.

## Values

| Key | Type | Default | Description |
|-----|------|---------|-------------|
"""


def readme(chart: Path) -> str:
    """Returns the README of a chart's folder."""
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
    text = (chart / "values.yaml").read_text()
    node = yaml.compose(text, yaml.SafeLoader)
    rows = _rows(node, yaml.safe_load(text), text.splitlines())
    return _TEXT.format_map(metadata) + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rows(
    node: Any, content: Mapping[str, Any], lines: list[str], above: str = ""
) -> Iterator[tuple[str, str, str, str]]:
    """Yields a row for each value of a mapping, and before those of a mapping in it its own, if it has a description."""
    for key_node, value_node in node.value:
        key = key_node.value
        value = content[key]
        description = _comment(lines, key_node.start_mark.line).replace("|", "\\|")
        if isinstance(value, dict) and value and key not in _OF_KUBERNETES:
            if description:
                yield f"{above}{key}", "object", "", description
            yield from _rows(value_node, value, lines, f"{above}{key}.")
        else:
            default = json.dumps(value, separators=(",", ":"))
            shown = f"`{default}`" if len(default) <= _LONGEST_DEFAULT else "in values.yaml"
            yield f"{above}{key}", _TYPES[type(value)], shown, description


def _comment(lines: list[str], line: int) -> str:
    first = line
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return " ".join(text.strip().removeprefix("# ") for text in lines[first:line])

"""Files and functions stay small enough to hold in a head."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMITS = {"scheduler_core": (400, 50), "app": (500, 60)}


def modules() -> list[tuple[Path, int, int]]:
    """Every module with the longest it and its functions may be."""
    return [(path, *limits) for folder, limits in LIMITS.items() for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize(("path", "most", "longest"), modules(), ids=lambda value: str(value).rpartition("/")[2])
def test_modules_and_functions_are_short(path: Path, most: int, longest: int) -> None:
    """Docstrings of functions do not count."""
    text = path.read_text()
    assert text.count("\n") <= most
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert length <= longest, f"{node.name} has {length} lines"


def test_the_root_has_at_most_twenty_entries() -> None:
    """A newcomer sees everything at a glance; what is generated does not count."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()} | {".git"}
    entries = [path.name for path in ROOT.iterdir() if path.name not in ignored]
    assert len(entries) <= 20, sorted(entries)


@pytest.mark.parametrize("path", sorted((ROOT / "app/api").glob("*.py")), ids=lambda path: path.name)
def test_routes_are_thin(path: Path) -> None:
    """A route decodes, calls one function of a service, and encodes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.AsyncFunctionDef) and any(
            "router" in ast.unparse(entry) for entry in node.decorator_list
        ):
            length = (node.end_lineno or 0) - node.body[0].lineno + 1
            assert length <= 20, f"{node.name} has {length} lines"

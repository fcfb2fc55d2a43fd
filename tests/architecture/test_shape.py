"""Files, functions and signatures stay small enough to read at once."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE_LIMITS = {"scheduler_core": (450, 50), "app": (450, 60)}
MAX_PARAMETERS = 7
# A command has one parameter per flag, one line each.
MAX_COMMAND_LINES = 80
MAX_ROUTE_LINES = 20
MAX_ROOT_ENTRIES = 20

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def functions(path: Path) -> list[Function]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Function)]


def is_command(path: Path) -> bool:
    return path.is_relative_to(ROOT / "app/cli")


@pytest.mark.parametrize("folder", LINE_LIMITS)
def test_modules_and_functions_are_short(folder: str) -> None:
    """Docstrings of functions do not count."""
    max_lines, max_function_lines = LINE_LIMITS[folder]
    long = []
    for path in modules(folder):
        if (lines := path.read_text().count("\n")) > max_lines:
            long.append(f"{path} has {lines} lines")
        for function in functions(path):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            length = (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
            if length > max_function_lines:
                long.append(f"{path}: {function.name} has {length} lines")
    assert long == []


@pytest.mark.parametrize("folder", LINE_LIMITS)
def test_signatures_are_short(folder: str) -> None:
    """A function takes few parameters; a command takes its flags, and is short none the less."""
    long = []
    for path in modules(folder):
        for function in functions(path):
            arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
            parameters = [argument for argument in arguments if argument.arg not in ("self", "cls")]
            lines = (function.end_lineno or 0) - function.lineno + 1
            if is_command(path) and lines > MAX_COMMAND_LINES:
                long.append(f"{path}: {function.name} has {lines} lines")
            elif not is_command(path) and len(parameters) > MAX_PARAMETERS:
                long.append(f"{path}: {function.name} takes {len(parameters)} parameters")
    assert long == []


def test_the_root_has_few_entries() -> None:
    """A newcomer sees everything at a glance; generated entries do not count."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()} | {".git"}
    entries = [path.name for path in ROOT.iterdir() if path.name not in ignored]
    assert len(entries) <= MAX_ROOT_ENTRIES, sorted(entries)


@pytest.mark.parametrize("path", sorted((ROOT / "app/api").glob("*.py")), ids=lambda path: path.name)
def test_routes_are_thin(path: Path) -> None:
    """A route decodes, calls one function of a service, and encodes."""
    for function in functions(path):
        decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
        if any("router" in decorator for decorator in decorators):
            length = (function.end_lineno or 0) - function.body[0].lineno + 1
            assert length <= MAX_ROUTE_LINES, f"{function.name} has {length} lines"

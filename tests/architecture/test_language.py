"""The language of the product's code: names, docstrings and comments in the field's terms, in plain sentences."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
HALVES = ("scheduler_core", "app")
FOLDERS = (*HALVES, "simulator", "devcluster")
Function = ast.FunctionDef | ast.AsyncFunctionDef

# Irregular participles that English uses for results; regular ones end in -ed.
PARTICIPLE = re.compile(r"^_[a-z_]*(ed|made|kept|known|told|seen|found|left|gone|given|taken|held|met|sent|heard|shown|written|chosen)$")  # fmt: skip
IDIOM = re.compile(
    r"\b(nobody|somebody|anybody|everybody|whoever|whomever|who|beside|told|heard|became|anew)\b", re.IGNORECASE
)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))


@pytest.fixture(scope="module", autouse=True)
def syntax_trees() -> Iterator[None]:
    """Keeps the syntax trees until the last test of this file: they are large."""
    yield
    parse.cache_clear()
    nodes.cache_clear()


def trees(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, parse(path)


def functions(*folders: str) -> Iterator[tuple[Path, Function]]:
    for path, _ in trees(*folders):
        for node in nodes(path):
            if isinstance(node, Function):
                yield path, node


def location(path: Path, node: ast.AST) -> str:
    """Returns file, line and name of a definition."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '')}"


def public_functions(*folders: str) -> Iterator[tuple[Path, Function]]:
    """Yields the public functions of some folders, and the public methods of public classes."""
    for path, tree in trees(*folders):
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
        for node in (*tree.body, *(node for each in classes for node in each.body)):
            if isinstance(node, Function) and not node.name.startswith("_"):
                yield path, node


def prose(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, Function | ast.ClassDef | ast.Module):
            yield ast.get_docstring(node) or ""
    yield from re.findall(r"(?:^|\s)#( .*)", path.read_text())


def test_one_statement_assigns_one_value() -> None:
    """At most one statement in 1,000 lines assigns a tuple of values to a tuple of names."""
    lines = sum(path.read_text().count("\n") for path, _ in trees(*HALVES))
    parallel = [
        location(path, node)
        for path, _ in trees(*HALVES)
        for node in nodes(path)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
    ]
    assert len(parallel) <= lines / 1000, parallel


def test_functions_are_named_by_verbs_or_nouns() -> None:
    """At most ten private functions are named by a past participle."""
    participles = [location(path, node) for path, node in functions(*HALVES) if PARTICIPLE.match(node.name)]
    assert len(participles) <= 10, participles


def test_variables_name_the_thing() -> None:
    """At most two functions of a hundred call something `found` or `known`."""
    all_functions = list(functions("scheduler_core"))
    vague = [
        location(path, node)
        for path, node in all_functions
        if {"found", "known"} & {entry.id for entry in ast.walk(node) if isinstance(entry, ast.Name)}
    ]
    assert len(vague) <= len(all_functions) / 50, vague


def test_long_public_functions_have_docstrings() -> None:
    """A body of more than four lines has one, unless it is a test, whose name is a sentence; ruff demands the others."""
    bare = [
        location(path, node)
        for path, node in public_functions(*FOLDERS, "tests")
        if not node.name.startswith("test_")
        and not ast.get_docstring(node)
        and (node.end_lineno or 0) - node.body[0].lineno >= 4
    ]
    assert bare == []


def test_whys_are_comments_at_their_lines() -> None:
    """Docstrings have at most 8,500 lines, and there are at least four comments for a hundred lines of code."""
    docstring_lines = 0
    comments = 0
    code_lines = 0
    for path, _ in trees(*HALVES):
        lines = dict(enumerate(path.read_text().splitlines(), start=1))
        for node in nodes(path):
            if isinstance(node, Function | ast.ClassDef | ast.Module) and ast.get_docstring(node):
                docstring = node.body[0]
                for number in range(docstring.lineno, (docstring.end_lineno or 0) + 1):
                    del lines[number]
                    docstring_lines += 1
        statements = [line for line in lines.values() if line.strip() and not line.lstrip().startswith("#")]
        comments += sum(1 for line in lines.values() if re.search(r"(?:^\s*|  )# (?!noqa|type: ignore)", line))
        code_lines += len(statements)
    assert docstring_lines <= 8_500
    assert comments >= code_lines * 0.04


@pytest.mark.parametrize("half", HALVES)
def test_summaries_are_short(half: str) -> None:
    """The first sentence of half of all docstrings has at most twelve words."""
    words = [
        len(re.split(r"\.\s", docstring)[0].split())
        for path, _ in trees(half)
        for node in nodes(path)
        if isinstance(node, Function | ast.ClassDef) and (docstring := ast.get_docstring(node))
    ]
    assert median(words) <= 12


def test_programs_are_not_persons() -> None:
    """At most forty docstrings and comments use `nobody`, `whoever`, `told` and the like."""
    idioms = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path, _ in trees(*HALVES)
        for text in prose(path)
        for match in IDIOM.finditer(text)
    ]
    assert len(idioms) <= 40, idioms


def test_one_name_means_one_class() -> None:
    """At most eight public class names occur in two modules, apart from pairs of model and convert."""
    modules = defaultdict(set)
    for path, tree in trees(*HALVES):
        if "convert" in path.parts:
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(str(path.relative_to(ROOT)))
    shared = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert len(shared) <= 8, shared


def test_one_file_name_means_one_module() -> None:
    """At most fifteen file names occur in more than one folder."""
    folders = defaultdict(set)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if path.name not in ("__init__.py", "__main__.py"):
                folders[path.name].add(str(path.parent.relative_to(ROOT)))
    shared = {name: sorted(paths) for name, paths in folders.items() if len(paths) > 1}
    assert len(shared) <= 15, shared


def test_functions_of_the_core_take_few_parameters() -> None:
    """At most three functions take more than five."""
    crowded = [
        location(path, node)
        for path, node in functions("scheduler_core")
        if len([entry for entry in (*node.args.args, *node.args.kwonlyargs) if entry.arg not in ("self", "cls")]) > 5
    ]
    assert len(crowded) <= 3, crowded

"""The core is a few packages, each importing only what lies below it; `.importlinter` holds the order itself."""

import configparser
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
MAX_PACKAGES = 19
# Predictions play what every package decides, so a sixth of the arrows is theirs; `decide`, `guard` and `monitor` read nearly the same packages.
MAX_ARROWS = 78
MAX_FLOORS = 11

Imports = Mapping[str, set[str]]


@pytest.fixture(scope="module")
def imports() -> Imports:
    """Which packages and modules of the core's root each of them imports."""
    graph = grimp.build_graph("scheduler_core", cache_dir=None)
    # `structs` stands for the standard library's dataclasses.
    packages = graph.find_children("scheduler_core") - {"scheduler_core.structs"}
    members = {name: {name} | graph.find_descendants(name) for name in packages}
    package_of = {module: name for name, modules in members.items() for module in modules}
    return {
        name: {
            package_of[target]
            for module in modules
            for target in graph.find_modules_directly_imported_by(module)
            if target in package_of
        }
        - {name}
        for name, modules in members.items()
    }


def test_the_core_has_few_packages(imports: Imports) -> None:
    """A newcomer reads their names in a minute."""
    assert len(imports) <= MAX_PACKAGES, sorted(imports)


def test_few_packages_of_the_core_import_each_other(imports: Imports) -> None:
    """The drawing of the imports stays readable."""
    arrows = [(source, target) for source, targets in imports.items() for target in targets]
    assert len(arrows) <= MAX_ARROWS, sorted(arrows)


def test_the_core_has_few_floors_and_no_circle(imports: Imports) -> None:
    """A package lies one floor above the highest that it imports; a circle raises CycleError."""
    floors: dict[str, int] = {}
    for name in TopologicalSorter(imports).static_order():
        floors[name] = 1 + max((floors[target] for target in imports[name]), default=0)
    assert max(floors.values()) <= MAX_FLOORS, floors


@pytest.mark.parametrize("contract", ["core-layers", "app-layers", "app-programs"])
def test_contracts_name_packages(contract: str) -> None:
    """A contract that lists single files says that a package is missing."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    section = parser[f"importlinter:contract:{contract}"]
    names = [
        name.strip()
        for key in ("layers", "modules")
        for line in section.get(key, "").splitlines()
        for name in line.replace(":", "|").split("|")
        if name.strip()
    ]
    alone = {"app.escaping", "app.evaluator", "app.memory_budget", "app.policy", "app.settings"}
    alone |= {"scheduler_core.backoff", "scheduler_core.errors", "scheduler_core.caches"}
    assert names
    assert [name for name in names if not (ROOT / name.replace(".", "/")).is_dir() and name not in alone] == []

#!/usr/bin/env python3
"""Removes the generated modules of the Kubernetes client that a program does not import.

    python prune.py SITE_PACKAGES PACKAGE...

The client has a module for every kind and every API group, twice, and imports each when it is first used. They are nearly all of its
size. All modules of the packages are imported here, so a module of the client that is not loaded then is used by none of them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

GENERATED = ("client/api", "client/models", "aio/client/api", "aio/client/models")
"""Folders of the client that hold nothing but such modules, and an ``__init__.py`` that finds them."""


def import_all(package: str) -> None:
    """Imports a package with all of its modules; those that run a program are left out."""
    for module in walk_packages(import_module(package).__path__, f"{package}."):
        if not module.name.endswith(".__main__"):
            import_module(module.name)


def loaded_files() -> set[Path]:
    """Returns the source files of all modules that are imported now."""
    return {
        Path(file).resolve() for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))
    }


def unused_modules(client: Path) -> list[Path]:
    """Returns the generated modules that are not imported.

    Raises:
        ValueError: the client has other folders than expected
    """
    loaded = loaded_files()
    modules: list[Path] = []
    for folder in GENERATED:
        files = sorted((client / folder).glob("*.py"))
        if not files:
            raise ValueError(f"{client} has no modules in {folder}: the client has changed, and so must GENERATED")
        modules += [file for file in files if file.name != "__init__.py" and file.resolve() not in loaded]
    return modules


def main(site_packages: str, *packages: str) -> None:
    """Imports the packages, and removes what they leave unused."""
    for package in packages:
        import_all(package)
    client = Path(str(import_module("kubernetes").__file__)).parent
    # A client of a different environment is never touched.
    if client.parent.resolve() != Path(site_packages).resolve():
        raise ValueError(f"the client in use is {client}, not the one of {site_packages}")
    modules = unused_modules(client)
    size = sum(module.stat().st_size for module in modules)
    for module in modules:
        module.unlink()
    print(f"removed {len(modules)} modules of the Kubernetes client, {size / 1e6:.0f} MB")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ValueError as error:
        sys.exit(f"prune: {error}")

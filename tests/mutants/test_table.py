"""The table of mutations fits the tree, so that it cannot rot: each one applies, has tests, and every package has two."""

import re
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from tests.mutants.table import ROOT, DoesNotApplyError, Mutation, read_mutations

MUTATIONS = read_mutations()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_applies_to_the_present_tree(mutation: Mutation) -> None:
    mutated = mutation.apply(ROOT)
    compile(mutated, mutation.file, "exec")
    assert mutated != (ROOT / mutation.file).read_text()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_tests_of_a_mutation_exist(mutation: Mutation) -> None:
    assert mutation.tests
    for test in mutation.tests:
        path, _, function = test.partition("::")
        assert (ROOT / path).exists(), path
        assert not function or re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_there_are_sixty_mutations_with_different_names() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 60


def test_every_package_has_two_mutations() -> None:
    counts = Counter(mutation.package for mutation in MUTATIONS)
    modules = chain.from_iterable((ROOT / top).rglob("*.py") for top in ("scheduler_core", "app", "simulator"))
    packages = {str(path.parent.relative_to(ROOT)) for path in modules if path.name != "__init__.py"}
    assert {package for package in packages if counts[package] < 2} == set()


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        pytest.param("file.py", "'x' occurs 2 times in file.py", id="twice: it is not known which is meant"),
        pytest.param("other.py", "there is no file other.py", id="no file"),
    ],
)
def test_mutation_that_does_not_apply_says_why(tmp_path: Path, file: str, problem: str) -> None:
    (tmp_path / "file.py").write_text("x = x")
    with pytest.raises(DoesNotApplyError, match=re.escape(problem)):
        Mutation("a name", file, "x", "y", ()).apply(tmp_path)

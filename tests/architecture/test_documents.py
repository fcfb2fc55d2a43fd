"""What the documents say is what the code does."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from app.cli.commands import load_command
from scheduler_core.decide.kube_scheduler_filters import PLUGIN_RULES, VOLUME_PLUGIN
from scheduler_core.installation.diagnosis import INSTALLED, UNINSTALLED
from scheduler_core.model.verdict import Reason
from scheduler_core.predict.remedy import RemedyKind
from tests.e2e.situations import SITUATIONS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


def test_every_reason_is_documented_with_its_text() -> None:
    """docs/reasons.md lists the reasons in the code's order, texts included."""
    rows = re.findall(r"^\| ([A-Z_]+) \| ([^|]+) \|", (ROOT / "docs/reasons.md").read_text(), re.MULTILINE)
    assert rows == [(reason.name, reason.text) for reason in Reason]


def test_every_statement_is_verified() -> None:
    """docs/reasons.md has each reason, plugin, check of doctor and kind of remedy once, with a test that exists."""
    text = (ROOT / "docs/reasons.md").read_text().partition("## What verified it")[2]
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| `([\w/.]+)::(\w+)` \|$", text, re.MULTILINE)
    checks = dict.fromkeys(check.name for check in (*INSTALLED, *UNINSTALLED))
    plugins = {*PLUGIN_RULES, VOLUME_PLUGIN}
    said = [row[0] for row in rows]
    assert sorted(said) == sorted([*(reason.name for reason in Reason), *plugins, *checks, *RemedyKind])
    missing = [row for row in rows if f"def {row[3]}(" not in (ROOT / row[2]).read_text()]
    assert missing == []
    in_situations = {row[0] for row in rows if row[3] == "test_a_reason_is_true_and_goes_with_its_fact"}
    assert in_situations == {each.reason.name for each in SITUATIONS} | {
        each.remedy for each in SITUATIONS if each.remedy
    }


def test_reasons_hold_no_numbers_and_are_short() -> None:
    """kube-scheduler groups equal texts. A dozen of them must fit into an event."""
    texts = [reason.text for reason in Reason if not reason.fits]
    assert not any(re.search(r"\d", text) for text in texts)
    assert sum(sorted((len(f"5000 {text}, ") for text in texts), reverse=True)[:12]) < 1024
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links of a document name existing files, and headings that these have."""
    links = re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)", document.read_text())
    missing = [
        f"{link}#{anchor}"
        for link, anchor in links
        if not _exists(document.parent / link if link else document, anchor)
    ]
    assert missing == []


def _exists(file: Path, anchor: str) -> bool:
    return file.exists() and (not anchor or file.suffix != ".md" or anchor in _anchors(file))


@cache
def _anchors(document: Path) -> frozenset[str]:
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(anchors)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(document: Path) -> None:
    """A path in backticks is a file or folder of the repository."""
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
    paths = re.findall(rf"`((?:{folders})/[A-Za-z0-9_./-]+(?:\.[a-z]+|/))`", document.read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_make_target_in_the_readme_exists() -> None:
    """The README's commands are the Makefile's."""
    named = set(re.findall(r"(?:\$ |`)make ([a-z0-9-]+)", (ROOT / "README.md").read_text()))
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= targets
    assert {"run", "test"} <= named


def test_every_setting_of_serve_is_documented_with_its_variable_and_default() -> None:
    """docs/configuration.md lists the flags in the program's order."""
    rows = re.findall(
        r"^\| `(--[a-z-]+)` \| (?:`([A-Z_]+)`)? ?\| (?:`([^`]+)`)? ?\|",
        (ROOT / "docs/configuration.md").read_text(),
        re.MULTILINE,
    )
    command = load_command("serve")
    flags = [parameter for parameter in command.params if parameter.name != "help"]
    assert rows == [
        (flag.opts[0], flag.envvar or "", str(getattr(flag.default, "value", flag.default) or "")) for flag in flags
    ]

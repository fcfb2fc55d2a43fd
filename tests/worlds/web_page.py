"""A page as a tree of elements, and its mistakes. They are by the rules of HTML and of accessibility."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from typing import Self

VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})


@dataclass
class Element:
    """An element with its attributes, its children and its own text."""

    tag: str
    attributes: dict[str, str]
    children: list[Self] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Self]:
        yield self
        for child in self.children:
            yield from child

    def all(self, tag: str, **attributes: str) -> list[Self]:
        expected = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [each for each in self if each.tag == tag and expected.items() <= each.attributes.items()]

    def one(self, tag: str, **attributes: str) -> Self:
        (element,) = self.all(tag, **attributes)
        return element

    @property
    def text(self) -> str:
        """The text of the element and its descendants, with single spaces."""
        return " ".join(" ".join(self.texts).split())


class _Reader(HTMLParser):
    """Reads a document; notes tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.problems: list[str] = []
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.problems.append(f"<{tag}> has an attribute twice")
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self._open[-1].tag != tag:
            self.problems.append(f"</{tag}> closes <{self._open[-1].tag}>")
        if len(self._open) > 1:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.texts.append(data)

    def close(self) -> None:
        super().close()
        self.problems += [f"<{element.tag}> is not closed" for element in self._open[1:]]


def read_page(text: str) -> Element:
    """Returns the root of a document, which is well-formed."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.problems == []
    return reader.root


def rows(page: Element, caption: str) -> list[list[str]]:
    """The cells of a table's body, by the beginning of its caption."""
    (table,) = [table for table in page.all("table") if table.one("caption").text.startswith(caption)]
    return [
        [cell.text for cell in row.children if cell.tag in ("th", "td")]
        for body in table.all("tbody")
        for row in body.all("tr")
    ]


def page_problems(text: str) -> list[str]:
    """Returns what is wrong with a page, empty if nothing is."""
    page = read_page(text)
    problems = []
    if not text.startswith("<!DOCTYPE html>\n"):
        problems.append("no doctype")
    if page.one("html").attributes.get("lang") != "en" or not page.one("title").text:
        problems.append("no language or no title")
    ids = Counter(element.attributes["id"] for element in page if "id" in element.attributes)
    problems += [f"id {name} occurs {number} times" for name, number in ids.items() if number > 1]
    for element in page:
        problems += _reference_problems(element, ids)
        problems += _active_content(element)
        problems += _name_problems(element, page)
    problems += _heading_problems(page)
    for table in page.all("table"):
        problems += _table_problems(table)
    problems += [f"<{tag}> occurs {len(page.all(tag))} times" for tag in ("main", "footer") if len(page.all(tag)) != 1]
    return problems


def _reference_problems(element: Element, ids: Counter[str]) -> list[str]:
    problems = []
    for name in ("aria-labelledby", "aria-describedby", "for"):
        references = element.attributes.get(name, "").split()
        problems += [f"{name} names {each}, which is absent" for each in references if each not in ids]
    if element.attributes.get("href", "").startswith("#") and element.attributes["href"][1:] not in ids:
        problems.append(f"{element.attributes['href']} is absent")
    return problems


def _active_content(element: Element) -> list[str]:
    """What a strict Content-Security-Policy refuses, and addresses of other servers."""
    problems = [
        f"<{element.tag}> has {name}" for name in element.attributes if name == "style" or name.startswith("on")
    ]
    if element.tag == "style" or (element.tag == "script" and "src" not in element.attributes):
        problems.append(f"inline <{element.tag}>")
    addresses = [element.attributes[name] for name in ("href", "src", "action") if name in element.attributes]
    problems += [f"address {each}" for each in addresses if not each.startswith(("/", "#")) or each.startswith("//")]
    return problems


def _name_problems(element: Element, page: Element) -> list[str]:
    attributes = element.attributes
    labelled = bool(attributes.get("aria-label") or attributes.get("aria-labelledby"))
    if element.tag == "img" and "alt" not in attributes:
        return ["<img> without alt"]
    if element.tag == "svg" and not (labelled if attributes.get("role") == "img" else attributes.get("aria-hidden")):
        return ["<svg> without a name"]
    if element.tag in ("a", "button") and not element.text and not labelled:
        return [f"<{element.tag}> without a name"]
    if element.tag in ("input", "select") and attributes.get("type") != "hidden":
        labels = [label for label in page.all("label") if label.attributes.get("for") == attributes.get("id")]
        return [] if labels and labels[0].text else [f"<{element.tag}> without a label"]
    if (element.tag == "section" or attributes.get("role") == "region") and not labelled:
        return [f"<{element.tag}> without a name"]
    if element.tag == "nav" and not labelled:
        return ["<nav> without a name"]
    return []


def _heading_problems(page: Element) -> list[str]:
    levels = [int(element.tag[1]) for element in page if element.tag in ("h1", "h2", "h3", "h4")]
    problems = [] if levels.count(1) == 1 and levels[0] == 1 else [f"headings are {levels}"]
    return problems + [
        f"heading {after} comes after {before}" for before, after in pairwise(levels) if after > before + 1
    ]


def _table_problems(table: Element) -> list[str]:
    problems = [] if [child.tag for child in table.children][:2] == ["caption", "thead"] else ["no caption or head"]
    heads = table.one("thead").all("th")
    problems += ["a column's head has no scope" for head in heads if head.attributes.get("scope") != "col"]
    for body in table.all("tbody"):
        for row in body.all("tr"):
            first = row.children[0]
            if first.tag != "th" or first.attributes.get("scope") not in ("row", "rowgroup"):
                problems.append("a row without a head")
            columns = sum(int(cell.attributes.get("colspan", "1")) for cell in row.children)
            if columns != len(heads):
                problems.append(f"a row of {columns} cells under {len(heads)} heads")
    return problems

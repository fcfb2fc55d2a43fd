"""Sphinx's configuration of the documentation site: the README is the start page, and its section Documentation the table of contents.

Data flow: Sphinx reads the README and every page in docs/ and examples/. Links to other files of the repository lead to copies of these,
each on a page of its own. Around the versions, `dist/site` has a list that the selector reads, and a page that leads to the newest.
"""

import html
import json
import os
import posixpath
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]

project = "Longhorn scheduler extender"
version = release = (
    os.environ.get("SITE_VERSION") or tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
)
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "docs/**.md", "examples/**README.md"]
exclude_patterns = [".*", "**/.*", "dist", "app", "scheduler_core", "tests"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
highlight_language = "text"

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["site.css"]
html_js_files = ["versions.js"]
html_favicon = "../../app/api/page/assets/icon.svg"
html_context = {"default_mode": "auto"}
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_sidebars = {"**": ["contents.html"]}
html_theme_options = {
    "logo": {"text": project},
    "navbar_center": [],
    "navbar_end": ["versions.html", "theme-switcher"],
    "footer_start": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

_LEXERS = {".yaml": "yaml", ".json": "json", ".py": "python"}
_shown: set[Path] = set()


class Mermaid(SphinxDirective):
    """A diagram as text, which the browser draws."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Returns what `static/diagrams.js` looks for."""
        text = html.escape("\n".join(self.content))
        return [nodes.raw("", f'<pre class="mermaid">{text}</pre>', format="html")]


def add_contents(_app: Sphinx, name: str, text: list[str]) -> None:
    """Adds the table of contents to the start page: the pages that its section Documentation names, in that order."""
    if name == "examples/README":
        text[0] += "\n```{toctree}\n:hidden:\n:glob:\n*/README\n```\n"
    if name != root_doc:
        return
    for group, links in re.findall(
        r"^- \*\*(\w+):\*\*(.*?)(?=^- |^$)", text[0].partition("## Documentation")[2], re.M | re.S
    ):
        pages = [
            link.removesuffix(".md") + "README" * link.endswith("/") for link in re.findall(r"\]\(([^)]+)\)", links)
        ]
        text[0] += "\n".join(["\n```{toctree}", ":hidden:", f":caption: {group}", *pages, "```\n"])


def link_files(app: Sphinx, document: nodes.document) -> None:
    """Turns links to files and folders of the repository into links to their copies, or to the page of a folder that has one."""
    page = app.env.docname
    for link in [*document.findall(download_reference), *document.findall(pending_xref)]:
        path = (ROOT / page).parent / link["reftarget"]
        if link.get("refdomain") or not path.exists():
            continue
        name = path.resolve().relative_to(ROOT).as_posix()
        if f"{name}/README" in app.env.found_docs:
            target = f"{name}/README"
        else:
            _shown.add(path.resolve())
            target = _copy_of(path.resolve())
        link.replace_self(
            nodes.reference("", "", *link.children, internal=True, refuri=app.builder.get_relative_uri(page, target))
        )


def _copy_of(path: Path) -> str:
    return posixpath.join("files", path.relative_to(ROOT).as_posix().lstrip("."))


def show_files(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Makes a page of every file that is linked, and one with all of its files of every folder."""
    show = app.builder.highlighter.highlight_block
    for path in sorted(_shown):
        title = path.relative_to(ROOT).as_posix()
        # Files that are not the repository's may hold secrets.
        listing = ["git", "ls-files", "-z", str(path)]
        names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603 # no shell
        files = [ROOT / name for name in names.stdout.split("\0") if name]
        parts = [f"<h1>{title}</h1>"]
        for file in files:
            parts += [] if file == path else [f"<h2>{file.relative_to(path)}</h2>"]
            parts.append(show(file.read_text(), _LEXERS.get(file.suffix, "text")))
        yield _copy_of(path), {"title": title, "body": "".join(parts)}, "page.html"


def prepare_page(app: Sphinx, _page: str, _template: str, context: dict[str, Any], _document: object) -> None:
    """Loads Mermaid on the pages that have a diagram. The corner of a table heads no column."""
    body = context.get("body", "")
    if '<pre class="mermaid">' in body:
        app.add_js_file("mermaid.js")
        app.add_js_file("diagrams.js")
    context["body"] = body.replace('<th class="head"><p></p></th>', "<td></td>")


def finish(app: Sphinx, error: Exception | None) -> None:
    """Copies Mermaid into the version, lists all versions, and leads from their folder, and from the version's, to a start page."""
    if error:
        return
    mermaid = Path(find_spec("mmdc").origin).parent / "assets/mermaid.js"
    shutil.copyfile(mermaid, app.outdir / "_static/mermaid.js")
    site = app.outdir.parent
    versions = sorted((index.parent.name for index in site.glob("*/README.html")), key=_order, reverse=True)
    (site / "versions.json").write_text(json.dumps(versions))
    for folder, start in ((app.outdir, "README.html"), (site, f"{versions[0]}/README.html")):
        (folder / "index.html").write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{project}</title><meta http-equiv="refresh" content="0; url={start}"><a href="{start}">{project}</a></html>\n'
        )


def _order(name: str) -> tuple[bool, list[int], str]:
    return name[:1].isdigit(), [int(number) for number in re.findall(r"\d+", name)], name


def setup(app: Sphinx) -> None:
    """Connects the functions above."""
    app.add_directive("mermaid", Mermaid)
    app.connect("source-read", add_contents)
    app.connect("doctree-read", link_files, priority=100)
    app.connect("html-collect-pages", show_files)
    app.connect("html-page-context", prepare_page)
    app.connect("build-finished", finish)

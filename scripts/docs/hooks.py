"""What mkdocs needs to know of this repository, where pages also have to read well as files.

Pages link to files beside `docs/` (`../posenc/encodings/base.py`); the site has some of them as pages of its
own and none of the code, so such a link becomes the page, or the bare name of the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # file -> page of the site
ELSEWHERE = {**PAGES, "README.md": "index.md"}
LINK = re.compile(r"(?<!!)\[(?P<label>[^\]]+)\]\((?P<target>[\w./-]+)(?P<anchor>#[\w-]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add pages from files beside `docs/`."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked_from(text, folder=ROOT, page=page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links and lists of GitHub's Markdown read the same on the site."""
    name = page.file.src_uri
    if name in PAGES.values():
        return _lists(markdown)
    return _lists(linked_from(markdown, folder=(DOCS / name).parent, page=name))


def linked_from(text: str, *, folder: Path, page: str) -> str:
    """Return Markdown of a file in `folder` with links that work from `page` of the site."""
    folder_of_page = (DOCS / page).parent

    def replace(match: re.Match[str]) -> str:
        label, target, anchor = match["label"], match["target"], match["anchor"] or ""
        if folder != ROOT and not target.startswith("../"):
            return match[0]  # another page beside this one: mkdocs checks it; or code, `heads[0](tokens)`
        file = (folder / target).resolve()
        if not file.exists():
            raise PluginError(f"{page}: a link to {target}, which does not exist")
        in_repository = str(file.relative_to(ROOT))
        if in_repository in ELSEWHERE:
            file = DOCS / ELSEWHERE[in_repository]
        if file.is_relative_to(DOCS):
            return f"[{label}]({os.path.relpath(file, folder_of_page)}{anchor})"
        return label if label.startswith("`") else f"`{label}`"

    return LINK.sub(replace, text)


def _lists(text: str) -> str:
    """A blank line before a list or table that follows a paragraph; Python's Markdown wants one."""
    out: list[str] = []
    fenced = False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            if not fenced and out and out[-1].strip() and not line.startswith(" "):
                out.append("")
            fenced = not fenced
        elif not fenced and out and out[-1].strip():
            begins = re.match(r"(- |\* |\d+\. |\|)", line)
            goes_on = re.match(r"\s*(- |\* |\d+\. |\|)|\s+\S", out[-1])
            if begins and not goes_on:
                out.append("")
        out.append(line)
    return "\n".join(out)

"""Let mkdocs build the site from pages that also read well as files on GitHub.

Pages link to files outside `docs/`, such as `../posenc/encodings/base.py`. Some are pages of the site. The
code is not, and then the link becomes the bare name of the file.
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
ADDED_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PAGE_OF_FILE = {**ADDED_PAGES, "README.md": "index.md"}  # file in the repository -> page of the site
LINK = re.compile(r"(?<!!)\[(?P<label>[^\]]+)\]\((?P<target>[\w./-]+)(?P<anchor>#[\w-]+)?\)")
LIST_OR_TABLE = re.compile(r"(- |\* |\d+\. |\|)")


def on_files(files: Files, config: Any) -> Files:
    """Add pages from files outside `docs/`."""
    for name, page in ADDED_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        content = with_links_of_site(text, folder=ROOT, page=page)
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make a page's links and lists work on the site."""
    name = page.file.src_uri
    if name not in ADDED_PAGES.values():  # theirs were changed when they were added
        markdown = with_links_of_site(markdown, folder=(DOCS / name).parent, page=name)
    return with_blank_lines_before_lists(markdown)


def with_links_of_site(text: str, *, folder: Path, page: str) -> str:
    """Return the Markdown of a file in `folder`, with links that work from `page` of the site.

    Raises PluginError for a link to a file that does not exist.
    """
    folder_of_page = (DOCS / page).parent

    def replace(match: re.Match[str]) -> str:
        label, target, anchor = match["label"], match["target"], match["anchor"] or ""
        if folder != ROOT and not target.startswith("../"):
            return match[0]  # a page in the same folder, which mkdocs checks, or code: `heads[0](tokens)`
        file = (folder / target).resolve()
        if not file.exists():
            raise PluginError(f"{page}: a link to {target}, which does not exist")
        in_repository = str(file.relative_to(ROOT))
        if in_repository in PAGE_OF_FILE:
            file = DOCS / PAGE_OF_FILE[in_repository]
        if file.is_relative_to(DOCS):
            return f"[{label}]({os.path.relpath(file, folder_of_page)}{anchor})"
        return label if label.startswith("`") else f"`{label}`"

    return LINK.sub(replace, text)


def with_blank_lines_before_lists(text: str) -> str:
    """Return the Markdown with a blank line between a paragraph and a list, table or block of code.

    GitHub does without; Python's Markdown would take the list for a part of the paragraph.
    """
    lines: list[str] = []
    in_code = False
    for line in text.split("\n"):
        is_fence = line.lstrip().startswith("```")
        if is_fence:
            begins_block = not in_code and not line.startswith(" ")
            in_code = not in_code
        else:
            begins_block = not in_code and LIST_OR_TABLE.match(line) is not None and not _in_list(lines)
        if begins_block and lines and lines[-1].strip():
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _in_list(lines: list[str]) -> bool:
    """Tell whether the last line belongs to a list or table: an item, a row, an indented continuation."""
    last = lines[-1] if lines else ""
    return LIST_OR_TABLE.match(last.lstrip()) is not None or re.match(r"\s+\S", last) is not None

"""What mkdocs needs to know of this repository, where pages also have to read well as files.

Pages link to files beside `docs/` (`../posenc/encodings/base.py`); the site has some of them as pages of its
own and none of the code, so such a link becomes the page, or the bare name of the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # file -> page of the site
ELSEWHERE = {**PAGES, "README.md": "index.md"}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./)?([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Pages from files beside `docs/`."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_linked(text, inside=False)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of `docs/`, and lists that follow a line of text at once, as GitHub reads them."""
    generated = page.file.src_uri in PAGES.values()
    return _lists(markdown if generated else _linked(markdown, inside=True))


def _linked(text: str, *, inside: bool) -> str:
    """`inside`: the text lies in `docs/`, so that links to the repository begin with `../`."""

    def replace(found: re.Match[str]) -> str:
        label, up, target, anchor = found[1], found[2], found[3], found[4] or ""
        if inside and not up:
            return found[0]
        if not (ROOT / target).exists():
            raise PluginError(f"a link to {target}, which is not there")
        if target.startswith("docs/"):
            return f"[{label}]({target.removeprefix('docs/')}{anchor})"
        if target in ELSEWHERE:
            return f"[{label}]({ELSEWHERE[target]}{anchor})"
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

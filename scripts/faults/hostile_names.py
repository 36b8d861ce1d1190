"""Names of other people that mean something to a terminal, a browser, a spreadsheet, LaTeX or Markdown."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from faults.case import Seen
from faults.commands import Ended

NAMES = (
    "=cmd|' /C calc'!A0",
    "+1+1",
    "@SUM(1)",
    "\t=1",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "]]>",
    "[red]x[/red]",
    "\x1b[31mred\x1b[2J",
    "\x00\x07\x9b31m",
    "\u202eevil",
    "a\nb\rc",
    "\\input{/etc/passwd}",
    "$x^2_3$ & % # ~",
    "| a | b |",
    "`code` **b** [l](javascript:alert(1))",
    "${oc.env:HOME}",
    "{{7*7}}",
    "../../up",
)


def write_runs(good: Path, folder: Path) -> None:
    """A copy of the run for each name, which stands wherever a text can."""
    for i, name in enumerate(NAMES):
        run = folder / f"run{i}"
        shutil.copytree(good, run, ignore=shutil.ignore_patterns("checkpoints"))
        results = json.loads((run / "results.json").read_text())
        results["run"] |= {"encoding": {"name": name, f"p{name}": name}, "name": name, "tokenizer": name}
        extended = {**results["records"][0], "extend": {"name": name, name: name}, "beyond": name}
        numbers = dict.fromkeys(("nats", "bpb", "ppl", "ci95", "per_document"))
        noted = {**results["records"][0], **numbers, "note": name, "window": 128, "multiple": 8.0}
        results["records"] += [extended, noted]
        (run / "results.json").write_text(json.dumps(results))
        status = json.loads((run / "status.json").read_text())
        told = {"reason": name, "host": name, "status": ("failed", "finished", name)[i % 3]}
        (run / "status.json").write_text(json.dumps({**status, **told}))
        (run / "config.yaml").unlink()


def seen_in_formats(work: Path, call: Callable[[list[str]], Ended]) -> Seen:
    """`posenc compare` in each format and `posenc runs`, read as their readers would."""
    found: list[str] = []
    commands = [["compare", "--allow-mixed", "--format", name] for name in READERS]
    commands += [["runs"], ["runs", "--format", "json"], ["compare", "--allow-mixed", "--html", "page.html"]]
    commands += [["compare", "--allow-mixed", "--plot", "plot.svg"]]
    for words in commands:
        ended = call(words)
        wrong = list(_unprintable(ended.out + ended.err))
        if ended.code:
            wrong.append(f"exit code {ended.code}: {ended.err[-200:]}")
        elif words[:3] == ["compare", "--allow-mixed", "--format"]:
            wrong += READERS[words[-1]](ended.out)
        elif words[-1] == "page.html":
            wrong += _page((work / "page.html").read_text())
        elif words[-1] == "plot.svg":
            wrong += re.findall(r"<(?:script|img|a)\b", (work / "plot.svg").read_text())
        found += [f"{' '.join(words)}: {one}" for one in wrong]
    return Seen(
        f"{len(NAMES)} names in {len(commands)} outputs", len(NAMES) * len(commands), len(found), tuple(found)
    )


def _unprintable(text: str) -> set[str]:
    return {f"character {c!r}" for c in text if not c.isprintable() and c != "\n"}


def _nothing(_: str) -> list[str]:
    return []


def _csv(text: str) -> list[str]:
    rows = list(csv.reader(io.StringIO(text)))
    cells = [cell for row in rows for cell in row]
    odd = [cell for cell in cells if cell.lstrip()[:1] in ("=", "+", "@", "-") and not _is_number(cell)]
    return [f"a formula {cell!r}" for cell in odd] + (
        ["ragged"] if len({len(row) for row in rows}) != 1 else []
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _markdown(text: str) -> list[str]:
    return [f"live {found!r}" for found in re.findall(r"(?<!\\)(?:<(?:script|img)|\]\(java|\*\*b)", text)]


def _latex(text: str) -> list[str]:
    odd = re.findall(r"(?<!textbackslash\{\})\\input|(?<!\\)[#]|\^\^", text)
    return odd + (["an open $"] if len(re.findall(r"(?<!\\)\$", text)) % 2 else [])


def _json(text: str) -> list[str]:
    try:
        json.loads(text)
    except ValueError as error:
        return [str(error)]
    return []


READERS = {"table": _nothing, "markdown": _markdown, "csv": _csv, "latex": _latex, "json": _json}


class _Page(html.parser.HTMLParser):
    """What a browser would run, and how often each name's script would start."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for key, value in attrs:
            if key.startswith("on") or (value or "").strip().lower().startswith("javascript:"):
                self.found.append(f"<{tag} {key}={value}>")
            if key == "src" and not (value or "").startswith("data:"):
                self.found.append(f"<{tag} {key}={value}>")


def _page(text: str) -> list[str]:
    page, plain = _Page(), _Page()
    page.feed(text)
    plain.feed(re.sub(r"<script.*?</script>", "<script></script>", text, flags=re.S))
    if page.scripts != plain.scripts:
        page.found.append("a name ends a script")
    return page.found

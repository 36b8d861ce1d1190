"""All checks together, printed."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.cli.doctor import hardware, network, parts, places, software
from posenc.cli.doctor.finding import Check, Finding, guarded, visible

# section, check, whether a failure of the check itself is a problem
CHECKS: list[tuple[str, Check, bool]] = [
    ("Python", software.python, True),
    ("Packages", software.packages, False),
    ("Hardware", hardware.torch_and_devices, True),
    ("Parts", parts.configuration, True),
    ("Parts", parts.encodings, True),
    ("Parts", parts.corpus, True),
    ("Network", network.hub, False),
    ("Network", network.wandb, False),
    ("Places", places.caches, True),
    ("Places", places.runs, True),
    ("Places", places.git, False),
]
STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def run_doctor(*, as_json: bool) -> int:
    """Check everything and print it on stdout; 1 if something is a problem, else 0."""
    found = examine()
    problems = [finding for _, finding in found if finding.level == "problem"]
    if as_json:
        rows = [{"section": section, **dataclasses.asdict(finding)} for section, finding in found]
        print(json.dumps({"schema_version": 1, "ready": not problems, "findings": rows}, indent=2))
    else:
        _print(found, problems)
    return 1 if problems else 0


def examine() -> list[tuple[str, Finding]]:
    """Findings with their sections, in order. Those who wait for the network do so beside the others."""
    results: dict[int, list[Finding]] = {}

    def examined(i: int) -> None:
        section, check, essential = CHECKS[i]
        results[i] = guarded(section if section != "Network" else check.__name__, check, essential)

    waiting = [
        threading.Thread(target=examined, args=(i,), daemon=True)
        for i, (section, _, _) in enumerate(CHECKS)
        if section == "Network"
    ]
    for thread in waiting:
        thread.start()
    for i, (section, _, _) in enumerate(CHECKS):
        if section != "Network":
            examined(i)
    for thread in waiting:
        thread.join(10)
    return [(CHECKS[i][0], finding) for i in range(len(CHECKS)) for finding in results.get(i, [])]


def _print(found: list[tuple[str, Finding]], problems: list[Finding]) -> None:
    console = _console()
    names = max(len(finding.name) for _, finding in found)
    for section in dict.fromkeys(section for section, _ in found):
        console.print(Text(section, style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(width=7)
        table.add_column(width=min(24, names), overflow="fold")
        table.add_column(overflow="fold")
        for finding in (finding for of, finding in found if of == section):
            text = Text(visible(finding.text))
            if finding.advice and finding.level != "ok":
                text.append(f"\n-> {visible(finding.advice)}", style="dim")
            table.add_row(Text(finding.level, style=STYLES[finding.level]), Text(visible(finding.name)), text)
        console.print(table)
    notes = sum(finding.level == "note" for _, finding in found)
    told = "ready: posenc train encoding=rope" if not problems else f"not ready, {len(problems)} to repair"
    console.print(Text(f"\n{told}" + (f"; {notes} notes" if notes else ""), style="bold"))


def _console() -> Console:
    """As wide and coloured as stdout; plain where the parts that tell are broken themselves."""
    try:
        from posenc.report.writers import color_of, unicode_of, width_of
    except Exception:
        return Console(highlight=False)
    return Console(
        width=width_of(sys.stdout),
        highlight=False,
        color_system="auto" if color_of(sys.stdout) else None,
        safe_box=not unicode_of(sys.stdout),
    )

"""Run `posenc doctor`: print whether everything is there that posenc needs, and what to do if not."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from posenc.core.errors import visible
from posenc.running.doctor import examine

STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
SCHEMA_VERSION = 1


def run_doctor(*, as_json: bool) -> int:
    """Check everything and print it; return 1 if something is a problem, else 0."""
    findings = examine()
    problems = [finding for finding in findings if finding.level == "problem"]
    # A note is no reason to stop a script that sets a machine up.
    exit_code = 1 if problems else 0
    if as_json:
        rows = [asdict(finding) for finding in findings]
        document = {"schema_version": SCHEMA_VERSION, "ready": not problems, "findings": rows}
        print(json.dumps(document, indent=2))
        return exit_code
    console = Console(highlight=False)
    for finding in findings:
        level = Text(f"{finding.level:<8}", style=STYLES[finding.level])
        console.print(level + visible(f"{finding.name}: {finding.text}"))
        if finding.advice and finding.level != "ok":
            console.print(Text(visible(f"         -> {finding.advice}"), style="dim"))
    summary = "ready: posenc train encoding=rope"
    if problems:
        summary = f"not ready, {len(problems)} to repair"
    console.print(Text(f"\n{summary}", style="bold"))
    return exit_code

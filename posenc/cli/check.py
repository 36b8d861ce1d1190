"""`posenc check`: print which laws encodings keep, as lines, as a matrix or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.text import Text

from posenc.config.compose import compose_jobs
from posenc.config.keys import key_of
from posenc.config.keys_of_commands import KEYS_OF_INITIAL_MODEL
from posenc.config.overrides import CommandLine, refuse_others
from posenc.core.errors import UserError, visible
from posenc.core.paths import choice_files
from posenc.laws import Verdict, statement
from posenc.laws.verdict import Status
from posenc.running.law_check import CheckedEncoding, LawCheck, check_encodings, line_of_callable

# One sign a law, so that the matrix of forty encodings fits into a terminal.
MARKS = {"pass": "+", "fail": "F", "n/a": "."}
STYLES = {"pass": "green", "fail": "bold red", "n/a": "dim"}
# of one law and of several, by the verdict
VERBS: dict[Status, tuple[str, str]] = {
    "pass": ("holds", "hold"),
    "n/a": ("does not apply", "do not apply"),
    "fail": ("fails", "fail"),
}


def run_check(
    line: CommandLine, *, all_encodings: bool, module: str | None, as_json: bool, debug: bool
) -> int:
    """Check the encodings that the overrides choose, and print the verdicts. Raises UserError.

    Returns 1 if a law is broken or an encoding refuses the settings, else 0. `module` names a callable of the
    user's, which is checked instead, and compared with the encoding of the overrides.
    """
    # The laws train nothing, so a learning rate here would be a misunderstanding.
    refuse_others(line, KEYS_OF_INITIAL_MODEL, "the laws")
    like = None
    if module is not None and all_encodings:
        problem = "--all checks the encodings of posenc"
        raise UserError("--module", module, problem, hint="leave out one of the two")
    if module is not None:
        line, like = line_of_callable(line, module)
    if all_encodings:
        line = _line_of_all(line)
    # encoding=rope,alibi is two encodings, also without -m
    jobs = compose_jobs("train", replace(line, multirun=True)).jobs
    result = check_encodings(jobs, like=like, debug=debug)
    # The shape follows from what was typed and not from what was
    # left: a script reads a list, or one document.
    as_matrix = all_encodings or len(jobs) > 1
    if as_json:
        documents = _documents(result)
        document = documents if as_matrix else documents[0]
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print(result, as_matrix)
    return 0 if result.passed else 1


def _line_of_all(line: CommandLine) -> CommandLine:
    """Return the line with every encoding, also those of --config-dir. Raises UserError."""
    if any(key_of(override) == "encoding" for override in line.overrides):
        raise UserError("encoding", None, "--all checks every encoding", hint="leave out one of the two")
    # Whatever has a YAML file can be chosen, and so it is checked.
    names = ",".join(choice_files("encoding", line.config_dir))
    return replace(line, overrides=[*line.overrides, f"encoding={names}"])


# --- JSON


def _documents(result: LawCheck) -> list[dict[str, Any]]:
    """Return a document for each encoding; those that refuse the settings come last."""
    documents: list[dict[str, Any]] = []
    for encoding in result.checked:
        verdicts = [_verdict_row(law, verdict) for law, verdict in encoding.verdicts.items()]
        documents.append({**encoding.settings, "passed": not encoding.failed, "verdicts": verdicts})
    for label, error in result.refused.items():
        documents.append({"encoding": {"name": label}, "passed": False, "refused": error.problem})
    return documents


def _verdict_row(law: str, verdict: Verdict) -> dict[str, str]:
    return {
        "law": law,
        "statement": statement(law),
        "verdict": verdict.status,
        "figure": verdict.figure,
        "reason": verdict.reason,
        "hint": verdict.hint,
    }


# --- text


def _print(result: LawCheck, as_matrix: bool) -> None:
    """Print a line for each law, or a matrix of several encodings and a line for each law that fails."""
    # rich would take the brackets of `[alibi,rope]` for markup.
    console = Console(highlight=False, markup=False, emoji=False)
    if as_matrix:
        _print_matrix(console, result.checked)
    else:
        _print_laws(console, result.checked[0])
    for label, error in result.refused.items():
        console.print(f"{visible(label)} is not checked: {visible(error.problem)}")
    statuses: Counter[Status] = Counter()
    for encoding in result.checked:
        statuses.update(verdict.status for verdict in encoding.verdicts.values())
    parts = [_count_text(statuses[status], *verbs) for status, verbs in VERBS.items()]
    console.print(", ".join(parts))


def _count_text(count: int, verb_of_one: str, verb_of_several: str) -> str:
    return f"{count} {verb_of_one if count == 1 else verb_of_several}"


def _print_laws(console: Console, encoding: CheckedEncoding) -> None:
    """Print the verdicts of one encoding, a line for each law."""
    title = f"{visible(encoding.label)}: {_size_text(encoding)}"
    console.print(Text(title, style="bold"))
    for law, verdict in encoding.verdicts.items():
        _print_verdict(console, f"{law:<12}", law, verdict)


def _print_matrix(console: Console, checked: Sequence[CheckedEncoding]) -> None:
    """Print a row of marks for each encoding, and below them the laws that fail."""
    console.print(Text(_size_text(checked[0]), style="bold"))
    for number, law in enumerate(checked[0].verdicts):  # each name stands above its column, like stairs
        console.print("| " * number + law)
    for encoding in checked:
        row = Text()
        for verdict in encoding.verdicts.values():
            row.append(f"{MARKS[verdict.status]} ", style=STYLES[verdict.status])
        console.print(row + visible(encoding.label))
    console.print("+ holds, F fails, . does not apply (why: posenc check encoding=NAME)")
    for encoding in checked:
        # A matrix has no room for reasons, and these are what it is read for.
        for law in encoding.failed:
            begin = f"{visible(encoding.label)} fails {law}"
            _print_verdict(console, begin, law, encoding.verdicts[law])


def _print_verdict(console: Console, begin: str, law: str, verdict: Verdict) -> None:
    """Print the line of a verdict; if it fails, below it the law and what usually mends it."""
    explanation = "; ".join(text for text in (verdict.reason, verdict.figure) if text)
    line = Text(begin)
    line.append(f" {verdict.status:<5}", style=STYLES[verdict.status])
    line.append(visible(explanation))
    # Nobody has to read a law that holds.
    if verdict.status == "fail":
        line.append(f"\n  the law: {statement(law)}", style="dim")
        if verdict.hint:
            line.append(f"\n  {verdict.hint}")
    console.print(line)


def _size_text(encoding: CheckedEncoding) -> str:
    """Return how many laws were checked, and at which size."""
    model = encoding.settings["model"]
    sizes = f"d_model {model['d_model']}, {model['n_layers']} layers, {model['n_heads']} heads"
    return f"{len(encoding.verdicts)} laws at {sizes}, T = {encoding.settings['context_length']}, on the CPU"

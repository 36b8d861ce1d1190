"""`posenc check`: hold encodings to the laws, at a small size and without any corpus."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.config.checks import check_model, whole
from posenc.config.compose import ComposedJob, compose_jobs, own_overrides
from posenc.config.overrides import CommandLine, key_of, refuse_others
from posenc.core.console import shown
from posenc.core.errors import UserError, visible
from posenc.core.paths import choice_files
from posenc.laws import LAWS, Subject, Verdict, judge
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.settings import spoken_name
from posenc.running.build import build_model, resolve_parts
from posenc.running.signals import debugging

# Big enough for every law, and all of them take a second; `model` and `context_length` choose others.
SMALL = ModelShape("check", d_model=32, n_layers=2, n_heads=4, mlp_ratio=2)
SHORT = 32
SHORTEST = 16  # tokens; at 8 the bf16 law struck healthy encodings in 4 of 96 texts
VOCABULARY = 17

MARKS = {"pass": ("+", "green"), "fail": ("F", "bold red"), "n/a": (".", "dim")}
LONGEST_LABEL = 30  # columns beside the marks; a longer label gets a line of its own
CHECKED = {"encoding", "attention", "positions", "model", "context_length", "seed", "plugins", "experiment"}


@dataclass(frozen=True)
class Checked:
    """An encoding with its resolved settings and the verdict of each law."""

    label: str
    settings: dict[str, Any]
    verdicts: dict[str, Verdict]

    @property
    def failed(self) -> list[str]:
        return [law for law, verdict in self.verdicts.items() if verdict.status == "fail"]

    @property
    def size(self) -> str:
        model = self.settings["model"]
        sizes = f"d_model {model['d_model']}, {model['n_layers']} layers, {model['n_heads']} heads"
        return f"{len(LAWS)} laws at {sizes}, T = {self.settings['context_length']}, on the CPU"


def run_check(line: CommandLine, *, every: bool, as_json: bool) -> int:
    """Check what the overrides choose and print it; 1 if a law is broken, else 0. Raises UserError.

    With `every`, encodings that refuse the settings are listed below the others, and the code is 1.
    """
    refuse_others(line, CHECKED, "is nothing that the laws look at")
    if every:
        line = _every_encoding(line)
    composed = compose_jobs("train", line)
    many = every or composed.sweep
    prepared = []
    refused: dict[str, UserError] = {}
    for job in composed.jobs:
        label = " ".join([spoken_name(job.settings["encoding"]) or "", *own_overrides(job, composed.jobs)])
        try:
            prepared.append((label, *prepare(job)))
        except UserError as error:
            if not every:
                raise (error.within(f"in the job {' '.join(job.overrides)}") if many else error) from None
            refused[label] = error
    if not prepared:
        raise next(iter(refused.values()))
    checked: list[Checked] = []
    with shown("checked", len(prepared) * len(LAWS)) as progress:
        for label, settings, subject in prepared:
            verdicts: dict[str, Verdict] = {}
            for law in LAWS:
                progress.update(len(checked) * len(LAWS) + len(verdicts), f"{visible(label)}: {law}")
                verdicts[law] = judge(law, subject, debug=debugging())
            checked.append(Checked(label, settings, verdicts))
    if as_json:
        documents = [_document(one) for one in checked]
        documents += [
            {"encoding": {"name": label}, "passed": False, "refused": error.problem}
            for label, error in refused.items()
        ]
        print(json.dumps(documents if many else documents[0], indent=2, ensure_ascii=False))
    elif many:
        _print_matrix(checked, refused)
    else:
        _print_one(checked[0])
    return 1 if refused or any(one.failed for one in checked) else 0


def prepare(job: ComposedJob) -> tuple[dict[str, Any], Subject]:
    """Return the resolved settings of a job and its subject, built once. Raises UserError."""
    chosen = {key_of(override).partition(".")[0] for override in job.overrides}
    shape = check_model(job.settings["model"]) if "model" in chosen else SMALL
    length = SHORT
    given = whole("context_length", job.settings["context_length"], least=2)
    if "context_length" in chosen:
        length = given
        if length < SHORTEST:
            problem = "too short for the laws: a mean over so few tokens is luck"
            raise UserError("context_length", length, problem, allowed=f"from {SHORTEST}")
    seed = whole("seed", job.settings["seed"], least=0)
    settings = {**resolve_parts(job.settings, length), "seed": seed}
    subject = subject_of(settings, shape)
    subject.build(0)
    return {**settings, "model": asdict(shape)}, subject


def subject_of(settings: dict[str, Any], shape: ModelShape = SMALL) -> Subject:
    """Return what the laws check, of resolved settings."""

    def build(seed: int, **changes: Any) -> Decoder:
        laid = {**settings, **changes, "seed": settings["seed"] + seed}
        for group in {"encoding", "attention"} & set(changes):
            laid[group] = {**settings[group], **changes[group]}
        return build_model(laid, shape, VOCABULARY)

    name = spoken_name(settings["encoding"]) or ""
    return Subject(name, build, settings["context_length"], settings["encoding"])


def _every_encoding(line: CommandLine) -> CommandLine:
    """Make a sweep over every YAML of the group, with those of --config-dir."""
    for override in line.overrides:
        key, _, value = override.partition("=")
        if key == "encoding":
            raise UserError(key, value, "--all checks every encoding", hint="leave out one of the two")
    every = f"encoding={','.join(choice_files('encoding', line.config_dir))}"
    return replace(line, overrides=[*line.overrides, every], multirun=True)


def _document(one: Checked) -> dict[str, Any]:
    verdicts = [
        {
            "law": law,
            "statement": LAWS[law].statement,
            "verdict": v.status,
            "figure": v.figure,
            "reason": v.reason,
        }
        for law, v in one.verdicts.items()
    ]
    return {**one.settings, "passed": not one.failed, "verdicts": verdicts}


def _print_one(one: Checked) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(Text(f"{visible(one.label)}: {one.size}", style="bold"), overflow="fold")
    table = Table("law", "verdict", "measured, or why", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.columns[2].overflow = "fold"
    for law, verdict in one.verdicts.items():
        failed = verdict.status == "fail"
        words = [verdict.reason, verdict.figure] if failed else [verdict.figure, verdict.reason]
        text = Text(visible("; ".join(word for word in words if word)))
        if failed:
            text.append(f"\nthe law: {LAWS[law].statement}", style="dim")
        table.add_row(law, Text(verdict.status, style=MARKS[verdict.status][1]), text)
    console.print(table)
    console.print(_counts([one]))


def _print_matrix(checked: Sequence[Checked], refused: Mapping[str, UserError]) -> None:
    """Print encodings as rows and laws as columns; the laws' names head them like stairs."""
    console = Console(highlight=False, markup=False, emoji=False)
    sizes = {one.size for one in checked}
    title = sizes.pop() if len(sizes) == 1 else f"{len(LAWS)} laws, at the sizes that the rows say"
    console.print(Text(title, style="bold"), overflow="fold")
    labels = [visible(one.label) for one in checked]
    stub = max((len(label) for label in labels if len(label) <= LONGEST_LABEL), default=0) + 2
    for i, law in enumerate(LAWS):
        console.print(" " * stub + "| " * i + law)
    for label, one in zip(labels, checked, strict=True):
        if len(label) > LONGEST_LABEL:
            console.print(label, overflow="fold")
        row = Text((label if len(label) <= LONGEST_LABEL else "").ljust(stub))
        for verdict in one.verdicts.values():
            row.append(f"{MARKS[verdict.status][0]} ", style=MARKS[verdict.status][1])
        row.rstrip()
        console.print(row)
    console.print("+ holds, F fails, . does not apply")
    for label, one in zip(labels, checked, strict=True):
        for law in one.failed:
            verdict = one.verdicts[law]
            console.print(
                Text(f"\n{label} fails {law}: {LAWS[law].statement}", style="bold"), overflow="fold"
            )
            why = "; ".join(word for word in (verdict.reason, verdict.figure) if word)
            console.print(f"  {visible(why)}", overflow="fold")
    for label, error in refused.items():
        console.print(f"{visible(label)} is not checked: {visible(error.problem)}", overflow="fold")
    console.print(_counts(checked))


def _counts(checked: Sequence[Checked]) -> str:
    every = [verdict.status for one in checked for verdict in one.verdicts.values()]
    return f"{every.count('pass')} hold, {every.count('n/a')} do not apply, {every.count('fail')} fail"

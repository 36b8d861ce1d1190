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
from posenc.config.compose import ComposedJob, compose_jobs
from posenc.config.overrides import CommandLine, key_of, parse, refuse_others, refuse_unknown_flags
from posenc.core.console import shown
from posenc.core.errors import UserError, visible
from posenc.core.paths import choice_files
from posenc.laws import LAWS, Subject, Verdict, judge
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.settings import spoken_name
from posenc.running.build import build_model, resolve_parts
from posenc.running.told import debugging

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
    """An encoding at its size, as the settings say, and what each law says of it."""

    label: str
    settings: dict[str, Any]
    verdicts: dict[str, Verdict]

    @property
    def failed(self) -> list[str]:
        return [law for law, verdict in self.verdicts.items() if verdict.status == "fail"]


def run_check(arguments: Sequence[str], *, every: bool, as_json: bool) -> int:
    """Check what the overrides choose and print it: 1 if a law is broken, else 0. Raises UserError.

    Of every encoding, one that refuses the settings is told below the others, and the code is 1.
    """
    refuse_unknown_flags("check", list(arguments))
    line = parse(list(arguments))
    refuse_others(line, CHECKED, "is nothing that the laws look at")
    if line.asks_hydra:
        raise UserError("check", None, "prints no configuration", hint="posenc train --cfg job does")
    if every:
        line = _every_encoding(line)
    composed = compose_jobs("train", line)
    many = every or composed.sweep
    prepared = []
    refused: dict[str, UserError] = {}
    for job in composed.jobs:
        label = _label(job, composed.jobs)
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
    """The resolved settings of a job and its subject, built once to see that it can be. Raises UserError."""
    chosen = {key_of(override).partition(".")[0] for override in job.overrides}
    shape = check_model(job.settings["model"]) if "model" in chosen else SMALL
    given = whole("context_length", job.settings["context_length"], least=2)
    if "context_length" in chosen and given < SHORTEST:
        problem = "too short for the laws: a mean over so few tokens is luck"
        raise UserError("context_length", given, problem, allowed=f"from {SHORTEST}")
    length = given if "context_length" in chosen else SHORT
    settings = {
        **resolve_parts(job.settings, length),
        "seed": whole("seed", job.settings["seed"], least=0),
    }
    subject = subject_of(settings, shape)
    subject.build(0)
    return {**settings, "model": asdict(shape)}, subject


def subject_of(settings: dict[str, Any], shape: ModelShape = SMALL) -> Subject:
    """What the laws check, of resolved settings."""

    def build(seed: int, **changes: Any) -> Decoder:
        laid = {**settings, **changes, "seed": settings["seed"] + seed}
        for group in {"encoding", "attention"} & set(changes):
            laid[group] = {**settings[group], **changes[group]}
        return build_model(laid, shape, VOCABULARY)

    return Subject(
        spoken_name(settings["encoding"]) or "", build, settings["context_length"], settings["encoding"]
    )


def _every_encoding(line: CommandLine) -> CommandLine:
    """A sweep over every YAML of the group, with those of --config-dir."""
    for override in line.overrides:
        key, _, value = override.partition("=")
        if key == "encoding":
            raise UserError(key, value, "--all checks every encoding", hint="leave out one of the two")
    every = f"encoding={','.join(choice_files('encoding', line.config_dir))}"
    return replace(line, overrides=[*line.overrides, every], multirun=True)


def _label(job: ComposedJob, jobs: Sequence[ComposedJob]) -> str:
    """The encoding's name, and what else this job of a sweep does not share with all others."""
    name = spoken_name(job.settings["encoding"]) or ""
    own = [
        o for o in job.overrides if not o.startswith("encoding=") and any(o not in j.overrides for j in jobs)
    ]
    return " ".join([name, *own])


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


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def _print_one(one: Checked) -> None:
    console = _console()
    console.print(Text(f"{visible(one.label)}: {_size(one)}", style="bold"), overflow="fold")
    table = Table("law", "verdict", "measured, or why", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.columns[2].overflow = "fold"
    for law, verdict in one.verdicts.items():
        words = (
            [verdict.reason, verdict.figure] if verdict.status == "fail" else [verdict.figure, verdict.reason]
        )
        said = Text(visible("; ".join(word for word in words if word)))
        if verdict.status == "fail":
            said.append(f"\nthe law: {LAWS[law].statement}", style="dim")
        table.add_row(law, Text(verdict.status, style=MARKS[verdict.status][1]), said)
    console.print(table)
    console.print(_sum([one]))


def _print_matrix(checked: Sequence[Checked], refused: Mapping[str, UserError]) -> None:
    """Encodings as rows, laws as columns; each law's name heads its column, one line below the last one."""
    console = _console()
    sizes = {_size(one) for one in checked}
    title = sizes.pop() if len(sizes) == 1 else f"{len(LAWS)} laws, at the sizes that the rows say"
    console.print(Text(title, style="bold"), overflow="fold")
    labels = [visible(one.label) for one in checked]
    stub = max((len(label) for label in labels if len(label) <= LONGEST_LABEL), default=0) + 2
    for i, law in enumerate(LAWS):
        console.print(" " * stub + "| " * i + law)
    for label, one in zip(labels, checked, strict=True):
        row = Text(label.ljust(stub))
        if len(label) > LONGEST_LABEL:
            console.print(label, overflow="fold")
            row = Text(" " * stub)
        for verdict in one.verdicts.values():
            row.append(MARKS[verdict.status][0], style=MARKS[verdict.status][1])
            row.append(" ")
        row.rstrip()
        console.print(row)
    console.print("+ holds, F fails, . does not apply")
    for label, one in zip(labels, checked, strict=True):
        for law in one.failed:
            verdict = one.verdicts[law]
            console.print()
            console.print(Text(f"{label} fails {law}: {LAWS[law].statement}", style="bold"), overflow="fold")
            said = "; ".join(word for word in (verdict.reason, verdict.figure) if word)
            console.print(f"  {visible(said)}", overflow="fold")
    for label, error in refused.items():
        console.print(f"{visible(label)} is not checked: {visible(error.problem)}", overflow="fold")
    console.print(_sum(checked))


def _size(one: Checked) -> str:
    model = one.settings["model"]
    sizes = f"d_model {model['d_model']}, {model['n_layers']} layers, {model['n_heads']} heads"
    return f"{len(LAWS)} laws at {sizes}, T = {one.settings['context_length']}, on the CPU"


def _sum(checked: Sequence[Checked]) -> str:
    every = [verdict.status for one in checked for verdict in one.verdicts.values()]
    return f"{every.count('pass')} hold, {every.count('n/a')} do not apply, {every.count('fail')} fail"

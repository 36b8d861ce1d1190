"""`posenc check`: hold encodings to the laws, at a small size and without any corpus."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from posenc.config.checks import check_model
from posenc.config.compose import ComposedJob, compose_jobs, own_overrides
from posenc.config.overrides import CommandLine, group_of, key_of, refuse_others
from posenc.core.console import shown
from posenc.core.errors import UserError, visible
from posenc.core.paths import choice_files
from posenc.core.signature import whole
from posenc.encodings.registry import encoding_class
from posenc.laws import COMPARED, LAWS, Subject, Verdict, judge, statement
from posenc.laws.subject import given_encoding
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.load import spoken_name
from posenc.running.build import build_model, resolve_parts

# Big enough for every law, and all of them take a second; `model` and `context_length` choose others.
SMALL = ModelShape("check", d_model=32, n_layers=2, n_heads=4, mlp_ratio=2)
SHORT = 32
SHORTEST = 16  # tokens; at 8 the bf16 law struck healthy encodings in 4 of 96 texts
VOCABULARY = 17

MARKS = {"pass": ("+", "green"), "fail": ("F", "bold red"), "n/a": (".", "dim")}
CHECKED = {"encoding", "attention", "positions", "model", "context_length", "seed", "plugins", "experiment"}


Checked = tuple[str, dict[str, Any], dict[str, Verdict]]  # label, resolved settings, verdict of each law


def run_check(
    line: CommandLine, *, every: bool, as_json: bool, debug: bool, module: str | None = None
) -> int:
    """Check what the overrides choose and print it; 1 if a law is broken, else 0.

    Of several, those that refuse the settings are listed below the others, and the code is 1. `module` names
    somebody's callable, which is checked instead, and compared with the encoding of the overrides.
    """
    refuse_others(line, CHECKED, "the laws")
    like = None
    if module is not None:
        if every:
            raise UserError("--module", module, "--all checks posenc's own", hint="leave out one of the two")
        line, like = _given(line, module)
    if every:  # with those of --config-dir
        if any(key_of(override) == "encoding" for override in line.overrides):
            raise UserError("encoding", None, "--all checks every encoding", hint="leave out one of the two")
        names = ",".join(choice_files("encoding", line.config_dir))
        line = replace(line, overrides=[*line.overrides, f"encoding={names}"])
    jobs = compose_jobs("train", replace(line, multirun=True)).jobs  # commas need no -m here
    many = every or len(jobs) > 1
    checked: list[Checked] = []
    refused: dict[str, UserError] = {}
    with shown("checked", len(jobs)) as progress:
        for i, job in enumerate(jobs):
            label = " ".join([spoken_name(job.settings["encoding"]) or "", *own_overrides(job, jobs)])
            progress.update(i, visible(label))
            try:
                settings, subject = prepare(job)
                if like is not None:
                    reference = build_model({**settings, "encoding": like}, SMALL, VOCABULARY)
                    subject = replace(subject, like=reference.encoding)
                laws = [*LAWS, *(COMPARED if like is not None else ())]
                verdicts = {law: judge(law, subject, debug=debug) for law in laws}
                checked.append((label, settings, verdicts))
            except UserError as error:
                refused[label] = error
    if not checked:
        raise next(iter(refused.values()))
    if as_json:
        documents = [_document(settings, verdicts) for _, settings, verdicts in checked]
        for label, why in refused.items():
            documents.append({"encoding": {"name": label}, "passed": False, "refused": why.problem})
        print(json.dumps(documents if many else documents[0], indent=2, ensure_ascii=False))
    else:
        _print(checked, refused, matrix=many)
    return 1 if refused or any(_failed(verdicts) for _, _, verdicts in checked) else 0


def _given(line: CommandLine, module: str) -> tuple[CommandLine, dict[str, Any] | None]:
    """Return a line that chooses the callable, and the settings of the encoding that it is compared with."""
    like, cls = None, None
    if any(group_of(key_of(o)) == "encoding" for o in line.overrides):
        job = compose_jobs("train", line).jobs[0]
        like = resolve_parts(job.settings)["encoding"]
        cls = encoding_class(like["name"], job.settings["plugins"])
    name, plugin = given_encoding(module, cls)
    kept = [o for o in line.overrides if group_of(key_of(o)) not in ("encoding", "plugins")]
    words = ["~encoding", f"++encoding.name='{name}'", f"plugins=[{plugin}]"]
    return replace(line, overrides=[*kept, *words]), like


def prepare(job: ComposedJob) -> tuple[dict[str, Any], Subject]:
    """Return the resolved settings of a job and its subject, built once. Raises UserError."""
    chosen = {key_of(override).partition(".")[0] for override in job.overrides}
    shape = check_model(job.settings["model"]) if "model" in chosen else SMALL
    if "context_length" not in chosen:
        job.settings["context_length"] = SHORT
    settings = resolve_parts(job.settings)
    low = "too short for the laws, which take means over tokens"
    whole("context_length", settings["context_length"], least=SHORTEST, low=low)
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


def _failed(verdicts: Mapping[str, Verdict]) -> list[str]:
    return [law for law, verdict in verdicts.items() if verdict.status == "fail"]


def _document(settings: dict[str, Any], verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    rows = [
        {"law": law, "statement": statement(law), "verdict": v.status, "figure": v.figure, "reason": v.reason}
        for law, v in verdicts.items()
    ]
    return {**settings, "passed": not _failed(verdicts), "verdicts": rows}


def _print(checked: Sequence[Checked], refused: Mapping[str, UserError], *, matrix: bool) -> None:
    """Print a line for each law; of several encodings a matrix, and the laws that fail."""
    console = Console(highlight=False, markup=False, emoji=False)
    model = checked[0][1]["model"]
    sizes = f"d_model {model['d_model']}, {model['n_layers']} layers, {model['n_heads']} heads"
    title = f"{len(checked[0][2])} laws at {sizes}, T = {checked[0][1]['context_length']}, on the CPU"
    console.print(Text(title if matrix else f"{visible(checked[0][0])}: {title}", style="bold"))
    if matrix:
        for i, law in enumerate(LAWS):  # the names head their columns like stairs
            console.print("| " * i + law)
        for label, _, verdicts in checked:
            row = Text()
            for verdict in verdicts.values():
                row.append(f"{MARKS[verdict.status][0]} ", style=MARKS[verdict.status][1])
            console.print(row + visible(label))
        console.print("+ holds, F fails, . does not apply")
    for label, _, verdicts in checked:
        for law in _failed(verdicts) if matrix else verdicts:
            verdict = verdicts[law]
            words = "; ".join(word for word in (verdict.reason, verdict.figure) if word)
            line = Text(f"{visible(label)} fails {law}" if matrix else f"{law:<12}")
            line.append(f" {verdict.status:<5}", style=MARKS[verdict.status][1]).append(visible(words))
            if verdict.status == "fail":
                line.append(f"\n  the law: {statement(law)}", style="dim")
            console.print(line)
    for label, error in refused.items():
        console.print(f"{visible(label)} is not checked: {visible(error.problem)}")
    every = [verdict.status for _, _, verdicts in checked for verdict in verdicts.values()]
    counts = f"{every.count('pass')} hold, {every.count('n/a')} do not apply, {every.count('fail')} fail"
    console.print(counts)

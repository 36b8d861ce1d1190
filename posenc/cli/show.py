"""`posenc show`: what an encoding does, as a picture or as text; at its start, or as a run trained it."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

from posenc.config.checks import check_model
from posenc.config.compose import ComposedJob, compose_jobs, is_sweep
from posenc.config.overrides import CommandLine, group_of, key_of, refuse_others
from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.errors import UserError, visible
from posenc.core.paths import expanded, output_file
from posenc.encodings.base import Encoding
from posenc.encodings.sum import Composed
from posenc.evaluation.extensions import build_extension, resolve_extend
from posenc.model.decoder import Decoder
from posenc.report.draw import FORMATS, picture_bytes, picture_text
from posenc.report.pictures import FAR, Picture, measure
from posenc.results.load import spoken_name
from posenc.running.build import build_model, resolve_parts
from posenc.running.eval_job import load_model, stored_run

VOCABULARY = 17  # of a model that reads no text
IN_TITLE = ("encoding", "attention", "positions")  # groups whose settings stand in the title
NOTE_WIDTH = 100  # characters of a line below the title
ASCII = {"±": "+/-", "·": ".", "°": " degrees"}  # our own signs in titles
DRAWN = {*IN_TITLE, "model", "context_length", "seed", "plugins", "experiment"}  # what a picture depends on
BESIDE_RUN = {"run", "plugins", "extend"}


def run_show(line: CommandLine, out: str | None) -> None:
    """Draw what the overrides choose into `out`, or print it as text. Raises UserError."""
    target = None if out is None else expanded(out)
    if target is not None:
        if target.suffix[1:].lower() not in FORMATS:
            allowed = ", ".join(f".{name}" for name in FORMATS)
            raise UserError("--out", out, "its ending names the format", allowed=allowed)
        output_file("--out", target)
    picture = picture_of(line)
    if target is None:
        text = f"{picture_text(picture)}\n\nall of it as a picture: the same command with --out FILE.png"
        encoding = sys.stdout.encoding or "ascii"
        for sign, plain in ASCII.items() if not encoding.lower().startswith("utf") else ():
            text = text.replace(sign, plain)
        print(text.encode(encoding, "replace").decode(encoding))
        return
    write_bytes_atomic(output_file("--out", target), picture_bytes(picture, target.suffix[1:].lower()))
    print(target)


def picture_of(line: CommandLine) -> Picture:
    """Measure the picture of what the overrides choose. Raises UserError; RunError for damaged files."""
    if any(key_of(override) == "run" for override in line.overrides):
        return _of_run(line)
    refuse_others(line, DRAWN, "is nothing that the picture shows (of a run: run=DIR extend=NAME)")
    job = _only_job("train", line, "draws one encoding at a time")
    settings = resolve_parts(job.settings)
    model = build_model(settings, check_model(job.settings["model"]), VOCABULARY)
    chosen = [o for o in job.overrides if group_of(key_of(o)) in IN_TITLE and key_of(o) != "encoding"]
    if [*model.encoding.parameters(), *model.options.parameters()]:
        chosen.append(f"initial values, seed {settings['seed']}")
    return _picture(model, settings, chosen)


def _of_run(line: CommandLine) -> Picture:
    """Measure the encoding as a run trained it; the run is read as plain data and verified weights."""
    for override in line.overrides:
        if group_of(key := key_of(override)) not in BESIDE_RUN:
            hint = "with run=DIR only extend and plugins can be said"
            raise UserError(key, None, "is the run's own", hint=hint)
    asked = _only_job("eval", line, "draws one run at a time").settings
    run = stored_run(asked["run"], asked["plugins"])
    checkpoint, settings = run.checkpoint, run.settings
    model = load_model(run)
    facts = [f"run {run.directory.resolve().name}, step {checkpoint.step}"]
    extend = dict(asked["extend"])
    if extend.pop("tune", False):
        raise UserError("extend.tune", True, "a picture chooses nothing", hint="posenc eval does")
    extension = build_extension(resolve_extend(extend), model)
    if extension is None:
        return _picture(model, settings, facts)
    window = FAR * settings["context_length"]
    facts.append(f"extended by {extension.name} for a window of {window}: {extension.formula}")
    return _picture(model, settings, facts, extension.effective_encoding(window), f"+{extension.name}")


def _only_job(command: str, line: CommandLine, problem: str) -> ComposedJob:
    for override in line.overrides:
        if is_sweep(override):
            hint = "a command for each; a list is written [a,b]"
            raise UserError(key_of(override), override.partition("=")[2], problem, hint=hint)
    composed = compose_jobs(command, line)
    if composed.sweep:
        raise UserError("show", None, problem, hint="leave out -m")
    return composed.jobs[0]


def _picture(
    model: Decoder,
    settings: dict[str, Any],
    more: list[str],
    extended: Encoding | None = None,
    suffix: str = "",
) -> Picture:
    shape = model.encoding.shape
    facts = [
        f"T = {shape.train_length}, {shape.n_heads} heads of {shape.head_dim}, d = {shape.d_model}",
        *more,
    ]
    if model.encoding.beyond:
        facts.append(f"past T: {model.encoding.beyond}")
    panels, remarks = measure(extended or model.eval().effective_encoding)
    notes = [*_formulas(model.encoding), ", ".join(facts), *remarks]
    lines = [line for note in notes for line in textwrap.wrap(visible(note), NOTE_WIDTH)]
    return Picture(visible((spoken_name(settings["encoding"]) or "") + suffix), panels, lines)


def _formulas(encoding: Encoding) -> list[str]:
    if isinstance(encoding, Composed):
        return [formula for part in encoding.parts for formula in _formulas(part)]
    return [encoding.formula]

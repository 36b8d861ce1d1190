"""`posenc show`: what an encoding does, as a picture or as text; at its start, or as a run trained it.

A run is read as `posenc eval` reads it: plain data, verified weights, nothing imported that it names.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from posenc.config.checks import check_model, whole
from posenc.config.compose import ComposedJob, compose_jobs, is_sweep
from posenc.config.overrides import CommandLine, key_of, parse, refuse_others, refuse_unknown_flags
from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.errors import RunError, UserError, visible
from posenc.core.paths import expanded, output_file
from posenc.encodings.base import Encoding
from posenc.encodings.sum import Composed
from posenc.evaluation.extensions import build_extension, resolve_extend
from posenc.model.decoder import Decoder
from posenc.report.pictures.measure import measure
from posenc.report.pictures.panels import FORMATS, Picture
from posenc.report.pictures.sampling import FAR
from posenc.report.pictures.text import text_plot
from posenc.results.settings import spoken_name
from posenc.running.build import build_decoder, build_model, resolve_parts
from posenc.running.stored_run import stored_run
from posenc.training.checkpoint import check_weights, load_weights

VOCABULARY = 17  # of a model that reads no text
SHOWN = ("encoding", "attention", "positions")  # groups whose settings stand in the title
NOTE = 100  # characters of a line below the title
ASCII = {"±": "+/-", "·": ".", "°": " degrees"}  # our own signs in titles
DRAWN = {*SHOWN, "model", "context_length", "seed", "plugins", "experiment"}  # all that a picture depends on
OF_A_RUN = {"run", "plugins", "extend"}  # what can be said beside run=


def run_show(arguments: Sequence[str], out: str | None) -> int:
    """Draw what the overrides choose into `out`, or print it as text. Raises UserError."""
    target = None if out is None else check_out(out)
    picture = picture_of(arguments)
    if target is None:
        text = f"{text_plot(picture)}\n\nall of it as a picture: the same command with --out FILE.png"
        print(_printable(text, sys.stdout.encoding or "ascii"))
        return 0
    from posenc.report.pictures.draw import picture_bytes

    write_bytes_atomic(output_file("--out", target), picture_bytes(picture, target.suffix[1:].lower()))
    print(target)
    return 0


def picture_of(arguments: Sequence[str]) -> Picture:
    """The measured picture of what the overrides choose. Raises UserError; RunError for damaged files."""
    refuse_unknown_flags("show", list(arguments))
    line = parse(list(arguments))
    if line.asks_hydra:
        raise UserError("show", None, "prints no configuration", hint="posenc train --cfg job does")
    return _of_run(line) if any(key_of(o) == "run" for o in line.overrides) else _of_settings(line)


def check_out(out: str) -> Path:
    """The file to write. Raises UserError for another format and for a folder that is not there."""
    target = expanded(out)
    if target.suffix[1:].lower() not in FORMATS:
        allowed = ", ".join(f".{name}" for name in FORMATS)
        raise UserError("--out", out, "its ending names the format", allowed=allowed)
    output_file("--out", target)
    return target


def _of_settings(line: CommandLine) -> Picture:
    """The encoding with its initial values."""
    refuse_others(line, DRAWN, "is nothing that the picture shows (of a run: run=DIR extend=NAME)")
    job = _only_job("train", line, "draws one encoding at a time")
    settings = {
        **resolve_parts(job.settings, whole("context_length", job.settings["context_length"], least=2)),
        "seed": whole("seed", job.settings["seed"], least=0),
    }
    model = build_model(settings, check_model(job.settings["model"]), VOCABULARY)
    learned = [*model.encoding.parameters(), *model.options.parameters()]
    start = f"initial values, seed {settings['seed']}" if learned else ""
    chosen = [o for o in job.overrides if key_of(o).partition(".")[0] in SHOWN and key_of(o) != "encoding"]
    return _picture(model, settings, [*chosen, start])


def _of_run(line: CommandLine) -> Picture:
    """The encoding as a run trained it."""
    for override in line.overrides:
        if (key := key_of(override)).partition(".")[0] not in OF_A_RUN:
            hint = "with run=DIR only extend and plugins can be said"
            raise UserError(key, None, "is the run's own", hint=hint)
    asked = _only_job("eval", line, "draws one run at a time").settings
    run = stored_run(asked["run"], asked["plugins"])
    checkpoint, settings = run.checkpoint, run.settings
    vocabulary = _vocabulary(checkpoint.path)
    with torch.device("meta"):  # before anything of a stranger's size is allocated
        check_weights(checkpoint.path, build_decoder(settings, run.shape, vocabulary))
    model = build_model(settings, run.shape, vocabulary)
    load_weights(checkpoint.path, model)
    facts = [f"run {run.directory.resolve().name}, step {checkpoint.step}"]
    chosen = dict(asked["extend"])
    if chosen.pop("tune", False):
        raise UserError("extend.tune", True, "a picture chooses nothing", hint="posenc eval does")
    extension = build_extension(resolve_extend(chosen), model)
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


def _printable(text: str, encoding: str) -> str:
    """What a terminal of this encoding can show."""
    for sign, plain in ASCII.items() if not encoding.lower().startswith("utf") else ():
        text = text.replace(sign, plain)
    return text.encode(encoding, "replace").decode(encoding)


def _vocabulary(checkpoint: Path) -> int:
    try:
        with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
            if "embedding.weight" in file.keys():  # noqa: SIM118
                return int(file.get_slice("embedding.weight").get_shape()[0])
    except SafetensorError as error:
        raise RunError(f"{checkpoint}/model.safetensors: {error}") from error
    raise RunError(f"{checkpoint} holds no token embeddings")


def _picture(
    model: Decoder,
    settings: dict[str, Any],
    more: list[str],
    acting: Encoding | None = None,
    extended: str = "",
) -> Picture:
    shape = model.encoding.shape
    size = f"T = {shape.train_length}, {shape.n_heads} heads of {shape.head_dim}, d = {shape.d_model}"
    facts = [size, *more, f"past T: {model.encoding.beyond}" if model.encoding.beyond else ""]
    trained = model.eval().effective_encoding
    panels, remarks = measure(acting or trained, None if acting is None else trained)
    notes = [*_formulas(model.encoding), ", ".join(fact for fact in facts if fact), *remarks]
    lines = [line for note in notes for line in textwrap.wrap(visible(note), NOTE)]
    name = (spoken_name(settings["encoding"]) or "") + extended
    return Picture(visible(name), panels, lines)


def _formulas(encoding: Encoding) -> list[str]:
    if isinstance(encoding, Composed):
        return [formula for part in encoding.parts for formula in _formulas(part)]
    return [encoding.formula]

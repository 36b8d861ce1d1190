"""`posenc show`: what an encoding does, as a picture or as text; at its start, or as a run trained it."""

from __future__ import annotations

import sys
import textwrap

from posenc.config.compose import compose_one
from posenc.config.overrides import CommandLine, group_of, key_of, refuse_others
from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.errors import UserError, visible
from posenc.core.paths import expanded, output_file
from posenc.evaluation.extensions import Extension, build_extension, leaves, resolve_extend
from posenc.model.decoder import Decoder
from posenc.pictures.draw import picture_bytes
from posenc.pictures.measure import FAR, measure
from posenc.pictures.panels import Picture
from posenc.pictures.text import picture_text
from posenc.report.terminal import write
from posenc.report.vega import FORMATS
from posenc.results.load import spoken_name
from posenc.running.checks import check_model
from posenc.running.model_parts import build_model, check_parts
from posenc.running.stored_run import load_model, stored_run
from posenc.settings.tree import RunSettings

VOCABULARY = 17  # of a model that reads no text
IN_TITLE = ("encoding", "attention", "positions")  # groups whose settings stand in the title
NOTE_WIDTH = 100  # characters of a line below the title
DRAWN = {*IN_TITLE, "model", "context_length", "seed", "plugins", "experiment"}  # what a picture depends on
BESIDE_RUN = {"run", "plugins", "extend"}


def run_show(line: CommandLine, out: str | None) -> None:
    """Draw what the overrides choose into `out`, or print it as text. Raises UserError."""
    if out is None:
        text = picture_text(picture_of(line))
        text += "\n\nall of it as a picture: the same command with --out FILE.png"
        write(f"{text}\n", sys.stdout)
        return
    target = expanded(out)
    if (ending := target.suffix[1:].lower()) not in FORMATS:
        allowed = ", ".join(f".{name}" for name in FORMATS)
        raise UserError("--out", out, "its ending names the format", allowed=allowed)
    path = output_file("--out", target)
    write_bytes_atomic(path, picture_bytes(picture_of(line), ending))
    print(target)


def picture_of(line: CommandLine) -> Picture:
    """Measure the picture of what the overrides choose. Raises UserError; RunError for damaged files."""
    if any(key_of(override) == "run" for override in line.overrides):
        return _of_run(line)
    refuse_others(line, DRAWN, "the picture", hint="of a run: run=DIR extend=NAME")
    job = compose_one("train", line, "encoding")
    settings = check_parts(job.settings)
    model = build_model(settings, check_model(settings.model), VOCABULARY)
    chosen = [o for o in job.overrides if group_of(key_of(o)) in IN_TITLE and key_of(o) != "encoding"]
    if [*model.encoding.parameters(), *model.options.parameters()]:
        chosen.append(f"initial values, seed {settings.seed}")
    return _picture(model, settings, chosen)


def _of_run(line: CommandLine) -> Picture:
    """Measure the encoding as a run trained it; the run is read as plain data and verified weights."""
    refuse_others(line, BESIDE_RUN, "a run that is trained")
    asked = compose_one("eval", line, "run").settings
    run = stored_run(asked.run, asked.plugins)
    model = load_model(run.settings, run.shape, run.checkpoint)
    facts = [f"run {run.directory.resolve().name}, step {run.checkpoint.step}"]
    if asked.extend.tune:
        raise UserError("extend.tune", True, "nothing is measured here", hint="posenc eval does")
    return _picture(
        model,
        run.settings,
        facts,
        build_extension(resolve_extend({"name": asked.extend.name, **asked.extend.parameters}), model),
    )


def _picture(
    model: Decoder, settings: RunSettings, facts: list[str], extension: Extension | None = None
) -> Picture:
    name, shape = spoken_name(settings.encoding.plain()), model.encoding.shape
    facts = [
        f"T = {shape.train_length}, {shape.n_heads} heads of {shape.head_dim}, d = {shape.d_model}",
        *facts,
    ]
    shown = model.eval().effective_encoding
    if extension is not None:
        window, name = FAR * shape.train_length, f"{name}+{extension.name}"
        shown = extension.effective_encoding(window)
        facts.append(f"extended by {extension.name} for a window of {window}: {extension.formula}")
    if model.encoding.beyond:
        facts.append(f"past T: {model.encoding.beyond}")
    panels, remarks = measure(shown)
    formulas = [part.formula for part in leaves(model.encoding)]
    notes = [*formulas, ", ".join(facts), *remarks]
    lines = [line for note in notes for line in textwrap.wrap(visible(note), NOTE_WIDTH)]
    return Picture(visible(name), panels, lines)

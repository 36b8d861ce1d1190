"""Measure the picture of an encoding (`posenc show`): at its initial values, or as a run trained it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from posenc.config.compose import compose_one
from posenc.config.keys import group_of, key_of
from posenc.config.keys_of_commands import KEYS_OF_INITIAL_MODEL, KEYS_OF_SHOWN_RUN
from posenc.config.overrides import CommandLine, refuse_others
from posenc.config.yaml_files import default_choices
from posenc.core.errors import RunError, UserError, plural, visible
from posenc.core.paths import choice_file, load_yaml
from posenc.evaluation.errors import NotApplicableError, OutOfMemoryError
from posenc.evaluation.extensions import Extension, build_extension, leaves, resolve_extend
from posenc.model.decoder import Decoder
from posenc.pictures.measure import measure
from posenc.pictures.panels import FAR, Panel, Picture
from posenc.pictures.trained import behaviour_on_text, trained_panels
from posenc.results.numbers import flat_texts
from posenc.results.runs import encoding_name
from posenc.running.checks import check_model
from posenc.running.evaluate import eval_context, request_of, tokenise
from posenc.running.job import Job
from posenc.running.model_parts import VOCABULARY, build_model, check_parts
from posenc.running.plan_evaluation import plan_evaluation
from posenc.running.stored_run import load_model, stored_run
from posenc.settings.base import Choice
from posenc.settings.errors import missing_value
from posenc.settings.tree import NONE, EncodingSettings, EvalCommandSettings, ExtendRequest, RunSettings

GROUPS_IN_TITLE = ("encoding", "attention", "positions")
NAMED_IN_TITLE = {"name", "parts"}  # of an encoding: the title is `rope`, or `alibi+rope`


def measure_picture(line: CommandLine) -> Picture:
    """Return the picture of what the overrides choose. Raises UserError; RunError for damaged files."""
    if any(key_of(override) == "run" for override in line.overrides):
        return _of_run(line)
    return _of_initial_values(line)


def _of_initial_values(line: CommandLine) -> Picture:
    """Measure the encoding at its initial values."""
    refuse_others(line, KEYS_OF_INITIAL_MODEL, "the picture", hint="of a run: run=DIR extend=NAME")
    job = compose_one("train", line, "encoding")
    settings = check_parts(job.run_settings)
    model = build_model(settings, check_model(settings.model), VOCABULARY)
    facts = [
        override
        for override in job.overrides
        if group_of(key_of(override)) in GROUPS_IN_TITLE and key_of(override) != "encoding"
    ]
    learned = [*model.encoding.parameters(), *model.options.parameters()]
    # Values that are drawn at random say nothing of a trained model, so the picture tells what they are.
    if learned:
        values = f"initial values, seed {settings.seed}"
        facts.append(f"{values}: train first, then posenc show run=DIR draws what was learned")
    return _picture(model, settings.encoding, facts)


def _of_run(line: CommandLine) -> Picture:
    """Measure the encoding as a run trained it. Of the run only plain data and verified weights are read."""
    refuse_others(line, KEYS_OF_SHOWN_RUN, "a run that is trained")
    settings = compose_one("eval", line, "run").eval_settings
    if settings.run is None:  # run=null
        raise missing_value("run")
    run = stored_run(settings.run, settings.plugins)
    model = load_model(run.settings, run.shape, run.checkpoint)
    run_fact = f"run {run.directory.resolve().name}, step {run.checkpoint.step}"
    facts = [*changed_options(run.settings), run_fact]
    extension = _extension(settings.extend, model)
    picture = _picture(model, run.settings.encoding, facts, extension, is_trained=True)
    panels, note = _on_text(settings, model, extension)
    return Picture(picture.title, [*picture.panels, *panels], [*picture.notes, visible(note)])


def changed_options(settings: RunSettings) -> list[str]:
    """Return as overrides what differs from the default attention and positions, and from their YAML files.

    The encoding is the title itself, so only its parameters are named: `encoding.base=500.0`.
    """
    names_by_default = {**default_choices("train"), "encoding": settings.encoding.name}
    choices: dict[str, Choice] = {
        "encoding": settings.encoding,
        "attention": settings.attention,
        "positions": settings.positions,
    }
    overrides = []
    for group, choice in choices.items():
        if choice.name != names_by_default[group]:
            overrides.append(f"{group}={choice.name}")
        path = choice_file(group, choice.name)
        texts_in_yaml = {} if path is None else flat_texts(load_yaml(path))
        for key, value in flat_texts(choice.plain()).items():
            is_named = key in NAMED_IN_TITLE
            if not is_named and value != texts_in_yaml.get(key):
                overrides.append(f"{group}.{key}={value}")
    return overrides


def _on_text(
    settings: EvalCommandSettings, model: Decoder, extension: Extension | None
) -> tuple[list[Panel], str]:
    """Measure what the model does on test documents of its own text, and say on what it was measured."""
    try:
        job = _job_on_text(settings)
        corpus = tokenise(job)
    # The rest of the picture needs no text, so it is drawn without one.
    except (UserError, RunError) as error:
        return [], f"its attention on text is not drawn: {getattr(error, 'problem', error)}"
    # Always in the same way, so that a picture is the same on every machine.
    context = dataclasses.replace(
        eval_context(job, model, corpus.store),
        extension=extension,
        device=torch.device("cpu"),
        precision="fp32",
    )
    blocks = job.evaluation.headline.plan(request_of(job, corpus.store))
    try:
        behaviour = behaviour_on_text(context, blocks, job.evaluation.lengths.longest)
    except (NotApplicableError, OutOfMemoryError) as error:
        return [], f"its attention on text is not drawn: {error}"
    count = plural(behaviour.n_windows, "window")
    note = f"attention and loss: on {count} of {context.split} text of {job.data.name}"
    return trained_panels(behaviour), note


def _job_on_text(settings: EvalCommandSettings) -> Job:
    """Return the evaluation of the run up to 8T, or up to its own longest window where texts are shorter."""
    as_trained = settings.with_changes(extend=ExtendRequest(name=NONE, tune=False, tries=1))
    up_to_8t = as_trained.eval.with_changes(lengths=[f"{FAR}x"])
    try:
        return plan_evaluation(as_trained.with_changes(eval=up_to_8t), keeps_records=False)
    except UserError:
        # The run was measured by these lengths before, so its text has them.
        return plan_evaluation(as_trained, keeps_records=False)


def _extension(settings: ExtendRequest, model: Decoder) -> Extension | None:
    """Return the test-time extension that the overrides choose. Raises UserError."""
    if settings.tune:
        raise UserError("extend.tune", True, "nothing is measured here", hint="posenc eval does")
    chosen = resolve_extend({"name": settings.name, **settings.parameters})
    return build_extension(chosen, model)


def _picture(
    model: Decoder,
    settings: EncodingSettings,
    facts: Sequence[str],
    extension: Extension | None = None,
    *,
    is_trained: bool = False,
) -> Picture:
    """Measure the panels, and write the lines below the title: formulas, sizes, `facts`, remarks."""
    name = encoding_name(settings.plain())
    trained = model.eval().effective_encoding
    encoding = trained
    shape = model.encoding.shape
    sizes = f"T = {shape.train_length}, {shape.n_heads} heads of {shape.head_dim}, d = {shape.d_model}"
    all_facts = [sizes, *facts]
    if extension is not None:
        window = FAR * shape.train_length
        name = f"{name}+{extension.name}"
        # An extension may depend on the length of the window, so it is drawn for one: 8T.
        encoding = extension.effective_encoding(window)
        all_facts.append(f"extended by {extension.name} for a window of {window}: {extension.formula}")
    if model.encoding.beyond:
        all_facts.append(f"past T: {model.encoding.beyond}")
    panels, remarks = measure(encoding, trained, is_trained=is_trained)
    formulas = [part.formula for part in leaves(model.encoding)]
    notes = [*formulas, ", ".join(all_facts), *remarks]
    return Picture(visible(name), panels, [visible(note) for note in notes])

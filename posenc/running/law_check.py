"""Hold encodings to the laws, at a small size and without any corpus (`posenc check`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from posenc.config.compose import ComposedJob, compose_jobs, distinguishing_overrides
from posenc.config.keys import group_of, key_of
from posenc.config.overrides import CommandLine
from posenc.core.errors import UserError, visible
from posenc.core.progress import progress_line
from posenc.encodings.base import Encoding
from posenc.encodings.registry import encoding_class
from posenc.laws import COMPARED, LAWS, Subject, Verdict, judge
from posenc.laws.callables import given_encoding
from posenc.laws.dependence import VISIBLE_CHANGE, change_by_later_tokens
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.runs import encoding_name
from posenc.running.checks import check_model
from posenc.running.model_parts import VOCABULARY, build_model, check_parts
from posenc.settings.numbers import check_whole
from posenc.settings.tree import RunSettings

# Large enough for every law, and small enough that all laws take a second. `model` and `context_length`
# choose another size.
SMALL = ModelShape("check", d_model=32, n_layers=2, n_heads=4, mlp_ratio=2)
SHORT = 32  # tokens, T
SHORTEST = 16  # tokens; at 8 the bf16 law failed healthy encodings in 4 of 96 texts
GROUPS = ("encoding", "attention", "positions")  # groups of settings that laws change


@dataclass(frozen=True)
class CheckedEncoding:
    """Hold the verdict of each law on one encoding."""

    label: str
    settings: dict[str, Any]  # settings of the checked model, as plain JSON
    verdicts: Mapping[str, Verdict]

    @property
    def failed(self) -> list[str]:
        """Return the laws that the encoding breaks."""
        return [law for law, verdict in self.verdicts.items() if verdict.status == "fail"]


@dataclass(frozen=True)
class LawCheck:
    """Hold the result of checking encodings."""

    checked: list[CheckedEncoding]
    refused: dict[str, UserError]  # by label: encodings that do not take the settings

    @property
    def passed(self) -> bool:
        """Tell whether every encoding was checked and breaks no law."""
        return not self.refused and not any(encoding.failed for encoding in self.checked)


def check_encodings(
    jobs: Sequence[ComposedJob], *, like: dict[str, Any] | None = None, debug: bool = False
) -> LawCheck:
    """Check the encoding of each job, and show the progress.

    `like` holds the settings of an encoding of posenc's to compare each of them with. Raises UserError if all
    of them refuse their settings, and with `debug` whatever an encoding raises.
    """
    laws = [*LAWS] if like is None else [*LAWS, *COMPARED]
    checked: list[CheckedEncoding] = []
    refused: dict[str, UserError] = {}
    with progress_line("checked", len(jobs)) as progress:
        for number, job in enumerate(jobs):
            name = encoding_name(job.run_settings.encoding.plain()) or ""
            label = " ".join([name, *distinguishing_overrides(job, jobs)])
            progress.update(number, visible(label))
            try:
                settings, subject = prepare_subject(job, like)
                verdicts = {law: judge(law, subject, debug=debug) for law in laws}
            except UserError as error:
                refused[label] = error
            else:
                checked.append(CheckedEncoding(label, settings, verdicts))
    if not checked:
        # If nothing was checked, the first refusal is the answer, as of a single encoding.
        raise next(iter(refused.values()))
    return LawCheck(checked, refused)


def prepare_subject(job: ComposedJob, like: dict[str, Any] | None = None) -> tuple[dict[str, Any], Subject]:
    """Return the resolved settings of a job, and what the laws check. Raises UserError."""
    chosen = {group_of(key_of(override)) for override in job.overrides}
    shape = check_model(job.run_settings.model) if "model" in chosen else SMALL
    length = job.run_settings.context_length if "context_length" in chosen else SHORT
    settings = check_parts(job.run_settings.with_changes(context_length=length))
    too_short = "too short for the laws, which take means over tokens"
    check_whole("context_length", length, least=SHORTEST, too_small=too_short)
    subject = subject_of(settings, shape)
    model = subject.build(0)  # raises UserError for settings that make no sense together
    check_distance_bias(model.encoding)
    # Both have the same seed, so that parameters of one name begin with the same values.
    if like is not None:
        reference = build_model(changed(settings, 0, {"encoding": like}), shape, VOCABULARY)
        subject = replace(subject, like=reference.encoding)
    return {**settings.plain(), "model": asdict(shape)}, subject


def check_foreign_encoding(settings: RunSettings) -> None:
    """Check an encoding that is not one of posenc's before it is trained, at the size of the laws.

    Raises UserError if it sees later tokens, or if its `distance_bias` has another shape. A leak of the
    future would make a low loss, which nothing shows afterwards.
    """
    subject = subject_of(settings.with_changes(context_length=SHORT))
    try:
        model = subject.fresh()
    except Exception:  # it does not take so small a model, so that only the training can tell
        return
    check_distance_bias(model.encoding)
    try:
        change = change_by_later_tokens(model, SHORT)
    except Exception:  # an encoding may raise anything
        return  # the training fails as well, and its error names the line
    if change > VISIBLE_CHANGE:
        problem = f"sees later tokens: logits move by {change:.2g} when only later tokens differ"
        hint = "its losses would be too low; posenc check encoding=./FILE.py says more"
        raise UserError("encoding", subject.name, problem, hint=hint)


def check_distance_bias(encoding: Encoding) -> None:
    """Raise UserError if the hook `distance_bias` of an encoding returns another shape than (H, R)."""
    if "distance_bias" not in encoding.hooks:
        return
    try:
        shape = tuple(encoding.distance_bias(torch.arange(SHORT), 0).shape)
    except Exception:  # an encoding may raise anything
        return  # a law, or the training, names the line
    n_heads = encoding.shape.n_heads
    expected = (n_heads, SHORT)
    # One row for all heads is taken as well.
    if shape in (expected, (1, SHORT)):
        return
    problem = f"distance_bias returns the shape {shape} for {SHORT} distances"
    allowed = f"{expected}: (H, R), a number for each of {n_heads} heads and each distance"
    raise UserError("encoding", encoding.name, problem, allowed=allowed)


def subject_of(settings: RunSettings, shape: ModelShape = SMALL) -> Subject:
    """Return what the laws check: a builder of models with these settings."""

    def build(seed: int, **changes: Any) -> Decoder:
        return build_model(changed(settings, seed, changes), shape, VOCABULARY)

    encoding = settings.encoding.plain()
    return Subject(encoding_name(encoding) or "", build, settings.context_length, encoding)


def changed(settings: RunSettings, seed: int, changes: Mapping[str, Any]) -> RunSettings:
    """Return the settings with the seed raised by `seed`, and with the changes of a law.

    Changes of encoding, attention and positions replace parameters. With a `name` they replace the choice.
    """
    values: dict[str, Any] = {"seed": settings.seed + seed}
    for key, change in changes.items():
        if key in GROUPS:
            group = getattr(settings, key)
            unchanged = {} if "name" in change else group.plain()
            values[key] = type(group).model_validate({**unchanged, **change})
        else:
            values[key] = change
    return settings.with_changes(**values)


def line_of_callable(line: CommandLine, module: str) -> tuple[CommandLine, dict[str, Any] | None]:
    """Return a line that chooses the user's callable PATH:NAME as encoding, and what to compare it with.

    That is the encoding that the overrides choose, by its settings; None if they choose none.
    """
    like: dict[str, Any] | None = None
    like_class = None
    if any(group_of(key_of(override)) == "encoding" for override in line.overrides):
        job = compose_jobs("train", line).jobs[0]
        encoding = check_parts(job.run_settings).encoding
        like = encoding.plain()
        like_class = encoding_class(encoding.name, job.run_settings.plugins)
    name, plugin = given_encoding(module, like_class)
    other_overrides = [
        override for override in line.overrides if group_of(key_of(override)) not in ("encoding", "plugins")
    ]
    chosen = ["~encoding", f"++encoding.name='{name}'", f"plugins=[{plugin}]"]
    return replace(line, overrides=[*other_overrides, *chosen]), like

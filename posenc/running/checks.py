"""Check settings that depend on each other or on the file system. All checks raise UserError."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

from posenc.core.atomic_files import why_not_writable
from posenc.core.errors import UserError
from posenc.core.paths import choice_file, is_folder, load_yaml, refuse_impossible
from posenc.data import Stage
from posenc.model.decoder import Decoder, ModelShape
from posenc.settings.tree import ModelSettings

FOLDER_NAME = re.compile(r"[A-Za-z0-9._+-]+")
LONGEST_FOLDER_NAME = 100  # characters; file systems take 255 bytes, and a hash follows
SIZES = ("d_model", "n_layers", "n_heads", "mlp_ratio")  # settings that a model's name stands for


def check_model(model: ModelSettings) -> ModelShape:
    """Return the decoder's sizes, checked against each other."""
    if model.d_model % model.n_heads:
        divisors = [heads for heads in range(1, min(model.d_model, 64) + 1) if model.d_model % heads == 0]
        problem = f"does not divide the width model.d_model={model.d_model}"
        step = 2 * model.n_heads
        below = model.d_model // step * step
        widths = " or ".join(f"model.d_model={width}" for width in (below, below + step) if width)
        hint = f"{widths} gives each head an even head_dim, as rotary encodings need it"
        allowed = ", ".join(map(str, divisors))
        raise UserError("model.n_heads", model.n_heads, problem, allowed=allowed, hint=hint)
    return ModelShape(
        name=_model_name(model),
        d_model=model.d_model,
        n_layers=model.n_layers,
        n_heads=model.n_heads,
        mlp_ratio=model.mlp_ratio,
        short_conv=model.short_conv,
    )


def _model_name(model: ModelSettings) -> str:
    """Return the name of the model's YAML, or the sizes if any of them was changed."""
    path = choice_file("model", model.name)
    sizes_of_yaml = {} if path is None else load_yaml(path)
    sizes = model.plain()
    was_changed = any(sizes_of_yaml[key] != sizes[key] for key in SIZES if key in sizes_of_yaml)
    name = model.name
    # The name of a YAML stands for its sizes. Other sizes under it would be a false row in a table.
    if was_changed:
        name = f"d{model.d_model}L{model.n_layers}H{model.n_heads}M{model.mlp_ratio}"
    return name if model.short_conv is None else f"{name}+conv{model.short_conv}"


def check_name(key: str, value: str) -> str:
    """Return a name that may become part of a path."""
    # Listings skip hidden folders, and a command would take a dash for an option.
    begins_wrong = value.startswith((".", "-"))
    if not FOLDER_NAME.fullmatch(value) or begins_wrong or len(value) > LONGEST_FOLDER_NAME:
        allowed = f"letters, digits and . _ + - (not first: . -), at most {LONGEST_FOLDER_NAME}"
        raise UserError(key, value[: LONGEST_FOLDER_NAME + 1], "not a name for a folder", allowed=allowed)
    return value


def check_runs_dir(key: str, runs_dir: str, folder: Path, *, writing: bool) -> None:
    """Check that a folder below `runs_dir` exists or can be made. With `writing` it must be writable, too.

    `key` is the setting that holds `runs_dir`.
    """
    if not runs_dir:
        raise UserError(key, "''", "is not a folder", hint=f"{key}=. is the working folder")
    refuse_impossible(key, folder)
    # lexists sees a link to nothing, where a folder could not be made.
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not is_folder(existing):  # a link to nothing is no folder either
        raise UserError(key, runs_dir, f"{existing} is not a folder")
    must_be_made = existing != folder
    if not writing and not must_be_made:
        return
    reason = why_not_writable(existing)
    if reason is not None:
        problem = f"the folder {existing.absolute()} cannot be written ({reason})"
        raise UserError(key, runs_dir, problem, hint=f"{key}=FOLDER that you can write to")


def check_positions_reach(model: Decoder, longest: int) -> None:
    """Check that positions of the longest window can be drawn."""
    model.eval()
    try:
        model.positions(longest, torch.Generator())  # the positions themselves are not needed
    except ValueError as error:
        raise UserError("positions.max", None, f"{error} (the longest of eval.lengths)") from error


def check_length_schedule(
    schedule: Sequence[tuple[float, int]] | None, context_length: int, batch_windows: int, steps: int
) -> tuple[Stage, ...]:
    """Return the stages of training windows, a single one without a schedule.

    `schedule` has the share of the tokens and the length of each stage.
    """
    if schedule is None:
        return (Stage(steps, context_length),)
    key = "train.length_schedule"
    allowed = (
        "stages [share of the tokens, length], up to context_length: "
        f"[[0.5,{context_length // 2}],[0.5,{context_length}]]"
    )
    batch_tokens = batch_windows * context_length
    share_so_far = 0.0
    stages: list[Stage] = []
    for number, (share, length) in enumerate(schedule):
        if length > context_length:
            in_range = f"a whole number from 2 to {context_length}"
            raise UserError(f"{key}[{number}][1]", length, "too large", allowed=in_range)
        if batch_tokens % length:
            problem = f"does not divide the {batch_tokens} tokens of a batch"
            raise UserError(key, length, problem, allowed=allowed)
        share_so_far += share
        # The sum is rounded and not each share, so that the last stage ends with the last step.
        stages.append(Stage(round(share_so_far * steps), length))
    grows = all(stage.length < following.length for stage, following in pairwise(stages))
    ends_at_context_length = stages[-1].length == context_length
    # Shares such as 0.1, 0.2 and 0.7 add up to 1 only up to rounding.
    misses_the_whole = abs(share_so_far - 1) > 1e-6
    if not grows or not ends_at_context_length or misses_the_whole:
        problem = "lengths must grow up to context_length, and the shares add up to 1"
        raise UserError(key, _as_lists(schedule), problem, allowed=allowed)
    ends = [0, *(stage.last_step for stage in stages)]
    if any(begin == end for begin, end in pairwise(ends)):
        raise UserError(key, _as_lists(schedule), f"a stage has none of the {steps} steps", allowed=allowed)
    return tuple(stages)


def _as_lists(schedule: Sequence[tuple[float, int]]) -> list[list[float]]:
    """Return a schedule as a user writes it."""
    return [list(stage) for stage in schedule]

"""Check the settings that need no data: numbers, names, sizes, lengths. All raise UserError."""

from __future__ import annotations

import copy
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.core.errors import UserError
from posenc.core.paths import choice_file, conf_dir, expanded
from posenc.core.signature import LARGEST, between, whole
from posenc.data.planted import LARGEST_ALPHABET
from posenc.evaluation import PROTOCOLS, key_tokens, resolve_length, resolve_lengths
from posenc.evaluation.extensions import resolve_extend
from posenc.evaluation.fixed_target import block_of, check_block
from posenc.evaluation.plans import RecallGrid
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.settings import own_yaml, parse_multiple
from posenc.training.device import PRECISIONS
from posenc.training.optimizer import OPTIMIZERS, Optimization

NAME = re.compile(r"[A-Za-z0-9._+-]+")
# Beyond any model there is: a slip, or a stranger's settings, is refused instead of built for hours.
LARGEST_MODEL = 10**11  # parameters
LARGEST_TOKENS = 10**15  # of a training
LARGEST_BATCH = 2**26  # tokens in one update, held in memory at once
LARGEST_SIZES = {"d_model": 10**6, "n_layers": 1000, "n_heads": 10**6, "mlp_ratio": 1000, "short_conv": 64}
LONGEST_CONTEXT = 2**24  # tokens, for training and evaluation
LONGEST_NAME = 100  # characters; file systems take 255 bytes, and a hash follows


@dataclass(frozen=True)
class EvalPlan:
    """What is measured, resolved."""

    windows: list[int]  # tokens, ascending
    base_length: int  # tokens: the T that the targets are of
    block: int  # tokens: fixed targets of a window
    key_tokens: str | None  # a run directory with a reference
    protocols: list[str]
    split: str
    target_fraction: float
    max_targets: int
    batch_tokens: int
    precision: str  # auto: as trained
    stride: int  # tokens
    recall: RecallGrid
    extend: dict[str, Any]  # a test-time extension, {"name": "none"} for the model as trained
    tune: int  # candidates for its knobs that are tried on validation documents; 0: none

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits whose documents are read."""
        return ("validation", self.split) if self.tune else (self.split,)


def one_of(key: str, value: str, choices: Iterable[str]) -> str:
    """Return one of the choices."""
    if value not in choices:
        raise UserError(key, value, "there is no such choice", allowed=choices)
    return value


def check_length(value: object) -> int:
    """Return `context_length`, in tokens."""
    return whole("context_length", value, least=2, most=LONGEST_CONTEXT)


def check_model(model: dict[str, Any]) -> ModelShape:
    """Return the decoder's sizes, which fit each other."""
    sizes = {
        key: whole(f"model.{key}", value, least=1, most=LARGEST_SIZES.get(key, LARGEST))
        for key, value in model.items()
        if key != "name" and not (key == "short_conv" and value is None)
    }
    d_model, n_heads = sizes["d_model"], sizes["n_heads"]
    if d_model % n_heads:
        fitting = ", ".join(str(h) for h in range(1, min(d_model, 64) + 1) if d_model % h == 0)
        problem = f"does not divide the width model.d_model={d_model}"
        raise UserError("model.n_heads", n_heads, problem, allowed=fitting)
    return ModelShape(name=_model_name(str(model["name"]), sizes), **sizes)


def _model_name(name: str, sizes: dict[str, int]) -> str:
    """Return the name of the YAML while the sizes are its own, else the sizes themselves."""
    path = choice_file("model", name)
    own = {} if path is None else own_yaml(path)
    if any(own.get(key, value) != value for key, value in sizes.items() if key != "short_conv"):
        name = f"d{sizes['d_model']}L{sizes['n_layers']}H{sizes['n_heads']}M{sizes['mlp_ratio']}"
    return f"{name}+conv{sizes['short_conv']}" if "short_conv" in sizes else name


def default_evaluation() -> dict[str, Any]:
    """Return the `eval` group as it is by default."""
    return copy.deepcopy(own_yaml(conf_dir() / "eval" / "default.yaml"))


def check_evaluation(
    settings: dict[str, Any], context_length: int, extend: dict[str, Any] | None = None
) -> EvalPlan:
    """Return what the `eval` group and the `extend` group of `posenc eval` ask for."""
    protocols = [one_of("eval.protocols", name, PROTOCOLS) for name in settings["protocols"]]
    if not protocols:
        raise UserError("eval.protocols", "[]", "no protocol to measure with", allowed=list(PROTOCOLS))
    split = one_of("eval.split", settings["split"], ("test", "validation"))
    fraction = between("eval.target_fraction", settings["target_fraction"], 0, 1, open_low=True)
    base = context_length
    if (given := settings["base_length"]) is not None:
        base = whole("eval.base_length", given, least=2, most=LONGEST_CONTEXT)
    # T itself is always measured: it is the crop line that every change is held against
    windows = sorted({*resolve_lengths(settings["lengths"], base), context_length})
    if windows[-1] > LONGEST_CONTEXT:
        raise UserError("eval.lengths", windows[-1], "too large", allowed=f"up to {LONGEST_CONTEXT} tokens")
    block = block_of(fraction, base)
    chosen = dict(extend or {"name": "none"})
    tries = whole("extend.tries", chosen.pop("tries", 1), least=1)
    tune = tries if chosen.pop("tune", False) else 0
    if tune or "fixed-target" in protocols:  # knobs are chosen by it, whatever measures
        check_block(windows[0], block)
    stride = block if settings["stride"] is None else resolve_length("eval.stride", settings["stride"], base)
    if "sliding" in protocols and stride > windows[0]:
        problem = f"steps over tokens in the shortest window, {windows[0]} tokens"
        raise UserError("eval.stride", settings["stride"], problem, allowed=f"1 to {windows[0]} tokens")
    if tune and split == "validation":
        hint = "report test documents: eval.split=test"
        raise UserError("extend.tune", True, "would choose on the documents that it reports", hint=hint)
    return EvalPlan(
        windows=windows,
        base_length=base,
        block=block,
        key_tokens=None if (run := settings["key_tokens"]) is None else str(expanded(run).absolute()),
        protocols=list(dict.fromkeys(protocols)),
        split=split,
        target_fraction=fraction,
        max_targets=whole("eval.max_targets", settings["max_targets"], least=1),
        batch_tokens=whole("eval.batch_tokens", settings["batch_tokens"], least=1),
        precision=one_of("eval.precision", settings["precision"], PRECISIONS),
        stride=stride,
        recall=_check_recall(settings["recall"], base),
        extend=resolve_extend(chosen),
        tune=tune,
    )


def check_key_tokens(plan: EvalPlan, fingerprint: str, tokenizer: str) -> None:
    """Check that there is a reference for key tokens, where they are measured."""
    if key_tokens.NAME in plan.protocols:
        key_tokens.check_reference(
            plan.key_tokens,
            tokenizer,
            fingerprint=fingerprint,
            split=plan.split,
            base=plan.base_length,
            block=plan.block,
            longest=max(plan.windows),
            max_targets=plan.max_targets,
        )


def _check_recall(settings: dict[str, Any], base_length: int) -> RecallGrid:
    """Return the `eval.recall` group; multiples of T are rounded to tokens."""
    for key, value in settings.items():
        if value is None or value == []:
            raise UserError(f"eval.recall.{key}", value, "must be given")
    distances = [
        max(2, round(parse_multiple(one, "eval.recall.distances") * base_length))
        if isinstance(one, str)
        else whole("eval.recall.distances", one, least=2, most=LONGEST_CONTEXT)
        for one in settings["distances"]
    ]
    pairs = [whole("eval.recall.pairs", one, least=1, most=LARGEST_ALPHABET) for one in settings["pairs"]]
    windows = whole("eval.recall.windows", settings["windows"], least=1, most=10**6)
    return RecallGrid(sorted({*distances}), sorted({*pairs}), windows)


def check_optimization(train: dict[str, Any], optim: dict[str, Any]) -> Optimization:
    def number(key: str, high: float = math.inf, *, open_low: bool = False) -> float:
        return between(f"optim.{key}", optim[key], 0, high, open_low=open_low)

    if isinstance(train["lr"], bool) or not isinstance(train["lr"], int | float):
        raise UserError("train.lr", train["lr"], "wrong type", allowed="a number above 0, or tuned")
    return Optimization(
        name=one_of("optim.name", optim["name"], OPTIMIZERS),
        lr=between("train.lr", train["lr"], 0, open_low=True),
        betas=(number("beta1", 0.9999), number("beta2", 0.99999)),
        eps=number("eps", open_low=True),
        weight_decay=number("weight_decay"),
        grad_clip=number("grad_clip", open_low=True),
        warmup_fraction=number("warmup_fraction", 1),
        final_lr_fraction=number("final_lr_fraction", 1),
    )


def check_length_schedule(
    given: list[Any] | None, context_length: int, batch_windows: int, steps: int
) -> list[tuple[int, int]]:
    """Return the stages of training windows, each the step at which it ends and its length; null: one."""
    key, stages, share = "train.length_schedule", list[tuple[int, int]](), 0.0
    if given is None:
        return [(steps, context_length)]
    allowed = f"stages [share of the tokens, length], up to context_length: [[0.5,{context_length // 2}],"
    allowed += f"[0.5,{context_length}]]"
    pairs = [s for s in given if isinstance(s, list) and len(s) == 2 and isinstance(s[0], int | float)]
    if not given or len(pairs) < len(given):
        raise UserError(key, given, "no list of stages", allowed=allowed)
    for number, (part, length) in enumerate(given):
        share += between(f"{key}[{number}][0]", part, 0, 1, open_low=True)
        whole(f"{key}[{number}][1]", length, least=2, most=context_length)
        if batch_windows * context_length % length:
            tokens = batch_windows * context_length
            raise UserError(key, length, f"does not divide the {tokens} tokens of a batch", allowed=allowed)
        stages.append((round(share * steps), length))
    lengths, ends = [length for _, length in stages], [0, *(end for end, _ in stages)]
    if lengths != sorted({*lengths}) or lengths[-1] != context_length or abs(share - 1) > 1e-6:
        problem = "lengths must grow up to context_length, and the shares add up to 1"
        raise UserError(key, given, problem, allowed=allowed)
    if len({*ends}) < len(ends):
        raise UserError(key, given, f"a stage has none of the {steps} steps", allowed=allowed)
    return stages


def check_name(key: str, value: str) -> str:
    """Return a name that may become part of a path."""
    if not NAME.fullmatch(value) or value.startswith((".", "-")) or len(value) > LONGEST_NAME:
        allowed = f"letters, digits and . _ + - (not first: . -), at most {LONGEST_NAME}"
        raise UserError(key, value[: LONGEST_NAME + 1], "not a name for a folder", allowed=allowed)
    return value


def check_runs_dir(given: str, folder: Path, *, writing: bool) -> None:
    """Check that a folder below `runs_dir` is there or can be made; with `writing` by this user."""
    if not given:
        raise UserError("runs_dir", "''", "is not a folder", hint="runs_dir=. is the working folder")
    place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not place.is_dir():  # nor is a link to nothing
        raise UserError("runs_dir", given, f"{place} is not a folder")
    if writing and not os.access(place, os.W_OK | os.X_OK):
        problem = f"the folder {place.absolute()} cannot be written"
        raise UserError("runs_dir", given, problem, hint="runs_dir=FOLDER that you can write to")


def check_positions_reach(model: Decoder, longest: int) -> None:
    """Check that positions of the longest window can be drawn."""
    try:
        model.eval().positions(longest, torch.Generator())
    except ValueError as error:
        raise UserError("positions.max", None, f"{error} (the longest of eval.lengths)") from error

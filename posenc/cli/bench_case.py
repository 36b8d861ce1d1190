"""From a composed command line to the cases of `posenc bench`, checked as `posenc train` checks them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from posenc.cli.bench_rate import Shape
from posenc.config.checks import between, check_batch_tokens, check_model, check_optimization, whole
from posenc.config.compose import ComposedJob
from posenc.config.overrides import key_of
from posenc.core.errors import UserError
from posenc.data import build_tokenizer, check_tokenizer
from posenc.encodings import encoding_class
from posenc.encodings.options import check_positions
from posenc.encodings.registry import own_encodings
from posenc.evaluation import resolve_length
from posenc.evaluation.fixed_target import block_of
from posenc.model.decoder import training_flops
from posenc.results.settings import spoken_name
from posenc.running.build import build_decoder, resolve_parts
from posenc.training.compiling import resolve_compile
from posenc.training.precision import resolve_device, resolve_precision

NO_WINDOWS = "none"
# Overrides that stand in the title of a table, not in the names of its rows.
IN_TITLE = ("encoding", "context_length", "model", "device", "seed", "train", "tokenizer", "optim", "data")


@dataclass(frozen=True)
class Case:
    """One row at one training length. `asked` is plain JSON: what a process needs to measure it."""

    label: str
    asked: dict[str, Any]

    @property
    def identity(self) -> str:
        """The same for two jobs that would measure the same; seeds make no difference."""
        settings = {key: value for key, value in self.asked["settings"].items() if key != "seed"}
        return json.dumps({**self.asked, "settings": settings, "base": None}, sort_keys=True)

    @property
    def group(self) -> str:
        """The same for all rows of one table: they differ in the encoding and in what acts beside it."""
        length = self.asked["settings"]["context_length"]
        without = {key: value for key, value in self.asked.items() if key not in ("settings", "base")}
        return json.dumps({**without, "context_length": length}, sort_keys=True)

    @property
    def yardstick(self) -> str:
        """Cases with the same one are held against the same rate of matrix products."""
        return json.dumps([self.asked["device"], self.asked["precision"]])

    @property
    def products(self) -> list[Shape]:
        """(m, k, n) of the products of a training step with its weights."""
        asked, model = self.asked, self.asked["model"]
        m = asked["batch_windows"] * asked["settings"]["context_length"]
        width, hidden = model["d_model"], model["mlp_ratio"] * model["d_model"]
        widths = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
        return [(m, k, n) for k, n in [*widths, (width, asked["vocab_size"])]]

    def base(self) -> Case:
        """The case that this one is relative to: the encoding that does nothing, all else the same."""
        return Case(
            spoken_name(self.asked["base"]["encoding"]) or "", {**self.asked, "settings": self.asked["base"]}
        )


def cases(jobs: Sequence[ComposedJob], *, repeats: int, lengths: str) -> list[Case]:
    """Every case once, in order. Raises UserError for wrong settings, as `posenc train` does."""
    found: dict[str, Case] = {}
    for job in jobs:
        try:
            asked = _asked(job.settings, repeats, lengths)
        except UserError as error:
            raise (
                error.within(f"in the job {' '.join(job.overrides)}") if len(jobs) > 1 else error
            ) from None
        one = Case(_label(job, jobs), asked)
        found.setdefault(one.identity, one)
    return list(found.values())


def with_bases(chosen: Sequence[Case]) -> list[Case]:
    """The cases by groups, each group's bases first; a base that was asked for keeps its label."""
    by_identity = {one.identity: one for one in chosen}
    ordered: dict[str, Case] = {}
    for group in dict.fromkeys(one.group for one in chosen):
        members = [one for one in chosen if one.group == group]
        for base in [one.base() for one in members]:
            ordered.setdefault(base.identity, by_identity.get(base.identity, base))
        for one in members:
            ordered.setdefault(one.identity, one)
    return list(ordered.values())


def _asked(settings: dict[str, Any], repeats: int, lengths: str) -> dict[str, Any]:
    train = settings["train"]
    length = whole("context_length", settings["context_length"], least=2)
    batch_tokens = check_batch_tokens(train["batch_tokens"], length)
    shape = check_model(settings["model"])
    device = resolve_device(settings["device"])
    evaluation = settings["eval"]
    fraction = between("eval.target_fraction", evaluation["target_fraction"], 0, 1, open_low=True)
    wanted = block_of(fraction, length)
    seed = whole("seed", settings["seed"], least=0)
    parts = {**resolve_parts(settings, length), "seed": seed}
    base = {**parts, "encoding": {"name": base_name()}, "positions": check_positions({"name": "contiguous"})}
    with torch.device("meta"):  # values out of range show when it is built; nothing is allocated
        build_decoder(base, shape, vocab_size=2)
        model = build_decoder(parts, shape, vocab_size=2)
    tokens = whole("train.tokens", train["tokens"], least=1)
    compiled = resolve_compile(train["compile"], device, flops=training_flops(model, length) * tokens)
    return {
        "kind": "cell",
        "settings": parts,
        "base": base,
        "model": asdict(shape),
        "vocab_size": _vocabulary(settings["tokenizer"]),
        "optimization": asdict(check_optimization(train, settings["optim"])),
        "batch_windows": batch_tokens // length,
        "precision": resolve_precision(train["precision"], device),
        "compile": compiled,
        "device": str(device),
        "windows": _windows(lengths, length, wanted),
        "wanted": wanted,
        "eval_batch_tokens": whole("eval.batch_tokens", evaluation["batch_tokens"], least=1),
        "repeats": repeats,
    }


def base_name() -> str:
    """The encoding that does nothing: no hook, no parameter."""
    return next(name for name in own_encodings() if encoding_class(name).acts_on == "nothing")


def _windows(lengths: str, length: int, wanted: int) -> list[int]:
    """`1x,512` as tokens, ascending."""
    if lengths.strip() == NO_WINDOWS:
        return []
    windows = {resolve_length("--eval-lengths", one, length) for one in lengths.strip("[] ").split(",")}
    if min(windows) < wanted:
        told = f"shorter than the {wanted} tokens that are scored (eval.target_fraction * context_length)"
        raise UserError("--eval-lengths", min(windows), told, allowed=f"lengths from {wanted} tokens")
    return sorted(windows)


def _vocabulary(tokenizer: dict[str, Any]) -> int:
    """Its size; no tokenizer is trained for it."""
    check_tokenizer(tokenizer)
    if tokenizer["name"] == "bpe":
        return int(tokenizer["vocab_size"])
    return build_tokenizer(tokenizer, _NoText()).vocab_size


class _NoText:
    """Where no text is read."""

    train_fingerprint = ""

    def read(self) -> list[Any]:
        return []


def _label(job: ComposedJob, jobs: Sequence[ComposedJob]) -> str:
    """The encoding's name, and which of its options this job does not share with all others."""
    own = []
    for override in job.overrides:
        key = key_of(override)
        said = key != "encoding" and (key.startswith("encoding.") or key.partition(".")[0] not in IN_TITLE)
        if said and any(override not in other.overrides for other in jobs):
            own.append(override)
    return " ".join([spoken_name(job.settings["encoding"]) or "", *own])

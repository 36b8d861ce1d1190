"""A run directory as an object: settings and records, and, once asked for, its model and tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.api.runs import Runs
from posenc.config.checks import between, whole
from posenc.core.errors import UserError, visible
from posenc.core.seeds import generator_for
from posenc.data.tokenizers import Tokenizer
from posenc.model.decoder import Decoder
from posenc.results.load import Run, load_run
from posenc.results.schema import Record
from posenc.running.eval_job import StoredRun, directory_of, load_model, stored_run

BATCH_TOKENS = 8192  # in one forward pass


def load(run: str | Path, *, plugins: Sequence[str] = ()) -> LoadedRun:
    """Return the run in a directory, or with this name or hash below runs/.

    Code that its settings name is never imported: an encoding of your own needs `plugins`, as in the
    commands. Raises UserError for what is no run, and for one that cannot be read.
    """
    found = load_run(directory_of(str(run)))
    if found.problem is not None:
        raise UserError("run", run, found.problem)
    return LoadedRun(found, plugins)


class LoadedRun:
    """A run. `model` and `tokenizer` are read when first used, the weights verified by their sha256."""

    def __init__(self, run: Run, plugins: Sequence[str] = ()) -> None:
        self.run, self.plugins = run, list(plugins)
        self.path, self.name, self.state = run.path, run.name, run.state
        self.config: dict[str, Any] = run.config or {}
        self.records: list[Record] = run.records

    def __repr__(self) -> str:
        return f"<run {visible(self.name)}: {self.state}, {len(self.records)} records>"

    @property
    def train_length(self) -> int:
        """T, in tokens."""
        return int(self.config["context_length"])

    @cached_property
    def _stored(self) -> StoredRun:
        return stored_run(str(self.path), self.plugins)

    @cached_property
    def model(self) -> Decoder:
        """The model with the weights of the newest intact checkpoint, on the CPU, in evaluation mode."""
        return load_model(self._stored, self._stored.checkpoint).eval()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What makes its tokens: `encode(text)`, `decode(ids)`."""
        definition = self._stored.checkpoint.path / "tokenizer.json"
        if definition.is_file():
            return Tokenizer("hf", definition.read_text(encoding="utf-8"))
        return Tokenizer("bytes")

    def nll(self, text: str, context: int | None = None) -> np.ndarray:
        """Return the loss in nats of every token of the text but the first.

        With `context` each is predicted from at most so many tokens; without, from all before it.
        """
        return token_nats(self.model, self._ids("text", text), context)

    def generate(self, prompt: str, context: int | None = None, **how: Any) -> str:
        """Return how the model goes on: `tokens` of them, at a `temperature`, drawn from a `seed`.

        It sees the last `context` tokens; without, the whole text.
        """
        ids, tokenizer = self._ids("prompt", prompt), self.tokenizer
        return tokenizer.decode(continuation(self.model, ids, tokenizer.vocab_size, context=context, **how))

    def _ids(self, key: str, text: str) -> list[int]:
        if not isinstance(text, str):
            raise UserError(key, type(text).__name__, "is no text", allowed="a str")
        return self.tokenizer.encode(text)

    def runs(self) -> Runs:
        """Return a collection of this run alone, for `to_frame`, `compare` and `plot`."""
        return Runs([self.run])


def window_of(model: Decoder, context: int | None, length: int) -> int:
    """Return how many tokens the model is given at most, for a text of `length`. Raises UserError."""
    asked = length if context is None else min(length, whole("context", context, least=1))
    encoding = model.effective_encoding
    trained, limit = encoding.shape.positions, encoding.ends_at
    if asked > trained and encoding.beyond == "truncate":
        return trained
    if asked > trained and encoding.beyond == "refuse":
        raise UserError("context", asked, "its encoding refuses it", allowed=f"up to {trained} tokens")
    if limit is not None and asked > limit:
        raise UserError("context", asked, f"no encoding of positions from {limit} on", allowed=f"to {limit}")
    return asked


@torch.no_grad()
def token_nats(model: Decoder, ids: Sequence[int], context: int | None = None) -> np.ndarray:
    """Return the loss in nats of every token but the first: (len(ids) - 1,) float64.

    Each has all tokens before it, or with `context` at most so many, in a window of its own.
    """
    count = len(ids) - 1
    if count < 1:
        raise UserError("text", None, "has no second token to score")
    window = window_of(model.eval(), context, count)
    windows = torch.tensor(ids).unfold(0, window + 1, 1)  # (count - window + 1, window + 1)
    batches = windows[1:].split(max(1, BATCH_TOKENS // window))
    losses = [
        _losses(model, windows[:1], window),
        *(_losses(model, batch, 1) for batch in batches if len(batch)),
    ]
    return torch.cat(losses).double().cpu().numpy()


def _losses(model: Decoder, windows: Tensor, n_targets: int) -> Tensor:
    """Return the losses of the last targets of windows (B, W + 1), one after the other: (B n_targets,)."""
    windows = windows.to(model.embedding.weight.device)
    logits = model(windows[:, :-1], n_targets=n_targets)  # (B, T, V)
    targets = windows[:, -n_targets:].flatten()
    return F.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")


@torch.no_grad()
def continuation(
    model: Decoder,
    ids: Sequence[int],
    vocab_size: int,
    *,
    context: int | None = None,
    tokens: int = 200,
    temperature: float = 0.8,
    seed: int = 0,
) -> list[int]:
    """Return the tokens drawn after `ids`, each from at most `context` tokens before it (None: all).

    The same seed draws with the same random numbers, whatever the context; temperature 0 takes the likeliest.
    """
    if not ids:
        raise UserError("prompt", None, "is empty")
    tokens = whole("tokens", tokens, least=1)
    between("temperature", temperature, 0, 100)
    generator, found = generator_for(whole("seed", seed, least=0), "sample"), list(ids)
    for _ in range(tokens):
        window = window_of(model.eval(), context, len(found))
        given = torch.tensor([found[-window:]], device=model.embedding.weight.device)
        logits = model(given, n_targets=1)[0, 0, :vocab_size].float().cpu()
        if not logits.isfinite().all():
            raise UserError("context", window, "its logits are not finite there")
        if temperature == 0:
            found.append(int(logits.argmax()))
        else:
            shares = (logits / temperature).softmax(0)
            found.append(int(torch.multinomial(shares, 1, generator=generator)))
    return found[len(ids) :]

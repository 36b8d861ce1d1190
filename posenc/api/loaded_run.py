"""Load a run as an object: its model, its tokenizer, its losses on any text, and the text that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from posenc.api.runs import Runs
from posenc.api.text import continuation, logits_behind, token_nats
from posenc.core.errors import UserError, visible
from posenc.data.tokenizers import Tokenizer, build_tokenizer
from posenc.model.decoder import Decoder
from posenc.results.records import Record
from posenc.results.runs import Run, load_run
from posenc.running.stored_run import StoredRun, directory_of, load_model, stored_run


def load(run: str | Path, *, plugins: Sequence[str] = ()) -> LoadedRun:
    """Return the run in a directory, or with this name or hash below runs/.

    Modules that the run's settings name are never imported: pass `plugins` for an encoding of your own.
    Raises UserError if there is no such run, or if it cannot be read.
    """
    stored = load_run(directory_of(str(run)))
    # `posenc compare` shows damaged runs with their problem. An object of one would fail at its first use.
    if stored.problem is not None:
        raise UserError("run", run, stored.problem)
    return LoadedRun(stored, plugins)


class LoadedRun:
    """Hold a run together with its model and tokenizer, which are read at their first use.

    Weights are verified by their sha256.
    """

    def __init__(self, run: Run, plugins: str | Sequence[str] = ()) -> None:
        self.run = run
        # A text is a sequence of letters, each of which would be taken for a module.
        self.plugins = [plugins] if isinstance(plugins, str) else list(plugins)
        self.path = run.path
        self.name = run.name
        self.state = run.state
        self.config: dict[str, Any] = run.config or {}  # the settings, as config.yaml holds them
        self.records: list[Record] = run.records

    def __repr__(self) -> str:
        return f"<run {visible(self.name)}: {self.state}, {len(self.records)} records>"

    @property
    def train_length(self) -> int:
        """Return the training length T, in tokens."""
        return int(self.config["context_length"])

    @cached_property
    def _stored(self) -> StoredRun:
        return stored_run(str(self.path), self.plugins)

    @cached_property
    def model(self) -> Decoder:
        """Return the model of the newest intact checkpoint, on the CPU, in evaluation mode."""
        stored = self._stored
        return load_model(stored.settings, stored.shape, stored.checkpoint).eval()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that the run was trained with; it has `encode(text)` and `decode(ids)`."""
        return build_tokenizer(self._stored.tokenizer_settings, None)

    def nll(self, text: str, context: int | None = None) -> np.ndarray:
        """Return the loss in nats of every token of the text except the first.

        Each token is predicted from at most `context` tokens before it; None: from all.
        """
        return token_nats(self.model, self._encode("text", text), context)

    def generate(
        self,
        prompt: str,
        context: int | None = None,
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        seed: int = 0,
    ) -> str:
        """Return the text that the model writes after the prompt.

        It sees the last `context` tokens; None: the whole text. Temperature 0 takes the likeliest tokens.
        """
        # A model that was trained with planted pairs may have tokens for them, which no text has.
        vocab_size = self.tokenizer.vocab_size

        def logits_of(text: Sequence[int]) -> Tensor:
            return logits_behind(self.model, text, vocab_size, context)

        ids = self._encode("prompt", prompt)
        written = continuation(logits_of, ids, tokens=tokens, temperature=temperature, seed=seed)
        return self.tokenizer.decode(written)

    def _encode(self, argument: str, text: str) -> list[int]:
        """Return the token ids of a text. Raises UserError, which names the argument, for anything else."""
        if not isinstance(text, str):
            raise UserError(argument, type(text).__name__, "is no text", allowed="a str")
        return self.tokenizer.encode(text)

    def runs(self) -> Runs:
        """Return a collection with only this run, for `to_frame`, `compare` and `plot`."""
        return Runs([self.run])

"""A run as an object: its model, its tokenizer, its losses on any text, and what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from posenc.api.runs import Runs
from posenc.api.text import continuation, token_nats
from posenc.core.errors import UserError, visible
from posenc.data.tokenizers import Tokenizer
from posenc.model.decoder import Decoder
from posenc.results.records import Record
from posenc.results.runs import Run, load_run
from posenc.running.stored_run import StoredRun, directory_of, load_model, stored_run


def load(run: str | Path, *, plugins: Sequence[str] = ()) -> LoadedRun:
    """Return the run in a directory, or with this name or hash below runs/.

    Code that its settings name is never imported: an encoding of your own needs `plugins`, as in the
    commands. Raises UserError for what is no run, and for one that cannot be read.
    """
    read = load_run(directory_of(str(run)))
    if read.problem is not None:
        raise UserError("run", run, read.problem)
    return LoadedRun(read, plugins)


class LoadedRun:
    """A run. `model` and `tokenizer` are read when first used, the weights verified by their sha256."""

    def __init__(self, run: Run, plugins: Sequence[str] = ()) -> None:
        self.run = run
        self.plugins = list(plugins)
        self.path = run.path
        self.name = run.name
        self.state = run.state
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
        stored = self._stored
        return load_model(stored.settings, stored.shape, stored.checkpoint).eval()

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

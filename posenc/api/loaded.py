"""A run directory as an object: settings and records, and, once asked for, its model and tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.api.runs import Runs
from posenc.core.errors import UserError, visible
from posenc.results.load import Run, load_run
from posenc.results.schema import Record

if TYPE_CHECKING:
    import numpy as np

    from posenc.data.tokenizers import Tokenizer
    from posenc.model.decoder import Decoder
    from posenc.running.eval_job import StoredRun


def load(run: str | Path, *, plugins: Sequence[str] = ()) -> LoadedRun:
    """Return the run in a directory, or with this name or hash below runs/.

    Code that its settings name is never imported: an encoding of your own needs `plugins`, as in the
    commands. Raises UserError for what is no run, and for one that cannot be read.
    """
    from posenc.running.eval_job import directory_of

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
        from posenc.running.eval_job import stored_run

        return stored_run(str(self.path), self.plugins)

    @cached_property
    def model(self) -> Decoder:
        """The model with the weights of the newest intact checkpoint, on the CPU, in evaluation mode."""
        from posenc.running.eval_job import load_model

        return load_model(self._stored, self._stored.checkpoint).eval()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What makes its tokens: `encode(text)`, `decode(ids)`."""
        from posenc.data.tokenizers import Tokenizer

        definition = self._stored.checkpoint.path / "tokenizer.json"
        if definition.is_file():
            return Tokenizer("hf", definition.read_text(encoding="utf-8"))
        return Tokenizer("bytes")

    def nll(self, text: str, context: int | None = None) -> np.ndarray:
        """Return the loss in nats of every token of the text but the first.

        With `context` each is predicted from at most so many tokens; without, from all before it.
        """
        from posenc.api.text import token_nats

        return token_nats(self.model, self.tokenizer.encode(text), context)

    def generate(self, prompt: str, context: int | None = None, **how: Any) -> str:
        """Return how the model goes on: `tokens` of them, at a `temperature`, drawn from a `seed`.

        It sees the last `context` tokens; without, the whole text.
        """
        from posenc.api.text import continuation

        ids, tokenizer = self.tokenizer.encode(prompt), self.tokenizer
        return tokenizer.decode(continuation(self.model, ids, tokenizer.vocab_size, context=context, **how))

    def runs(self) -> Runs:
        """Return a collection of this run alone, for `to_frame`, `compare` and `plot`."""
        return Runs([self.run])

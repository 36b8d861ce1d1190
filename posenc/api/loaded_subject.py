"""Load a causal language model of transformers, to continue texts with it, with an extension or without."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posenc.api.text import continuation
from posenc.core.errors import UserError
from posenc.data import build_tokenizer, inspect
from posenc.data.tokenizers import Tokenizer
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.models.transformers import TransformersModel
from posenc.running.hf_checkpoint import name_of_checkpoint
from posenc.running.subject_hf import default_data, read_subject
from posenc.settings.numbers import check_whole
from posenc.settings.tree import EvalCommandSettings
from posenc.training.device import resolve_device

SPLIT = "test"
MOST_BYTES_A_TOKEN = 16  # more than the tokens of a text have on average


class LoadedSubject:
    """Hold a model of transformers and its tokenizer. Its weights are read when it first continues a text."""

    def __init__(self, settings: EvalCommandSettings) -> None:
        """Check the model and the extension. Raises UserError."""
        if settings.extend.tune:
            raise UserError("extend.tune", True, "chooses by losses, which a sample has not", allowed="false")
        # Configuration and tokenizer alone: weights may take minutes to
        # load, and a wrong setting is told before.
        self._hf = read_subject(settings)
        self._data = settings.data or default_data()
        self._device = resolve_device(settings.device)
        self.train_length = self._hf.train_length
        self.tokenizer: Tokenizer = build_tokenizer(self._hf.tokenizer, None)
        name = name_of_checkpoint(self._hf.subject.path)
        evaluation = self._hf.evaluation
        self.name = f"{name} +{evaluation.extension_name}" if evaluation.is_extended else name

    @cached_property
    def model(self) -> TransformersModel:
        """Return the model with its weights, in evaluation mode."""
        return self._hf.model.loaded(self._device)

    def generate(
        self,
        prompt: str,
        context: int | None = None,
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        seed: int = 0,
    ) -> str:
        """Return the text that the model writes after the prompt. Temperature 0 takes the likeliest tokens.

        It is `tokens` long, or shorter where the model writes one of its end tokens.
        The prompt loses its beginning where it and the new tokens are more than `context`; None: nothing is
        lost. BOS stands before it if the model begins its texts so. The extension is that of windows as long
        as the whole text. Raises UserError for a prompt without a token.
        """
        tokens = check_whole("tokens", tokens, least=1)
        ids = self.tokenizer.encode(prompt)
        if not ids:
            raise UserError("prompt", prompt, "is empty")
        first = self.model.first_tokens
        if context is not None:
            # At least one token stays: `ids[-0:]` would be all of them.
            ids = ids[-max(1, context - tokens - len(first)) :]
        ids = [*first, *ids]
        extension = None
        extend = self._hf.evaluation.extend
        if extend is not None:
            extension = build_extension(extend.plain(), self.model)
        # One encoding for all steps: keys that the model keeps are rotated already, and would not be again.
        encoding = None if extension is None else extension.effective_encoding(len(ids) + tokens)
        past: Any = None

        def logits_of(text: Sequence[int]) -> Tensor:
            nonlocal past
            # `past` stands for all that was read before, so that a later step is given the new token alone.
            new_tokens = list(text) if past is None else [text[-1]]
            step = self.model.next_logits(torch.tensor([new_tokens], device=self._device), past, encoding)
            past = step.past
            # Many checkpoints pad their vocabulary, and no text has the tokens behind its end.
            return step.logits[0, : self.tokenizer.vocab_size]

        written = continuation(
            logits_of,
            ids,
            tokens=tokens,
            temperature=temperature,
            seed=seed,
            end_tokens=self.model.end_tokens,
        )
        return self.tokenizer.decode(written)

    def test_text(self, tokens: int) -> str:
        """Return the beginning of the longest test document, so many tokens of it. Raises UserError."""
        facts = inspect(self._data, self._hf.tokenizer, splits=(SPLIT,), needed_tokens=1, context_length=None)
        texts = [document.text for document in facts.read() if document.split == SPLIT]
        # Only the beginning is tokenised. Its cut may lie inside a character, which is then left out.
        beginning = max(texts, key=len)[: MOST_BYTES_A_TOKEN * tokens].decode(errors="ignore")
        return self.tokenizer.decode(self.tokenizer.encode(beginning)[:tokens])

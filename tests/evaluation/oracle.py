"""A model that copies: what came after the last tokens when they came before."""

import dataclasses

import numpy as np
import torch
from tiny_model import T, encoding_of
from token_stores import store_of
from torch import nn

from posenc.evaluation.passes import EvalContext


class Oracle(nn.Module):
    """Says what came behind the last `cue` tokens when they came last; it reads one window at a time."""

    def __init__(self, cue):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.eye(256))
        self.cue = cue
        self.effective_encoding = encoding_of("nope")
        self.shape = dataclasses.make_dataclass("Shape", ["n_heads"])(1)

    def positions(self, n, *_):
        return torch.arange(n)

    def output_weight(self, dtype):
        return self.embedding.weight.to(dtype)

    def hidden(self, tokens, pos, n_targets, *_):
        logits = torch.zeros(len(tokens), n_targets, 256)
        for row, text in enumerate(tokens.tolist()):
            for target in range(n_targets):
                end = len(text) - n_targets + target + 1
                cue = text[end - self.cue : end]
                answers = [text[i] for i in range(self.cue, end) if text[i - self.cue : i] == cue]
                answer = answers[-1] if answers else 0
                logits[row, target, answer] = 50.0
        return logits


def oracle_context(cue):
    """Return the oracle with twelve documents of a few letters."""
    text = np.random.default_rng(0).integers(97, 117, (12, 400))
    text[:, 300] = 255  # a key of the text is not asked for
    return EvalContext(
        model=Oracle(cue),
        context_length=T,
        seed=0,
        precision="fp32",
        device=torch.device("cpu"),
        store=store_of(text.tolist(), text[:2].tolist()),
        split="test",
        batch_tokens=512,
    )

"""Laws of what numbers depend on: neither on the rest of the batch nor on what was drawn before."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.laws.subject import Subject, largest, tokens
from posenc.laws.verdict import Verdict, require
from posenc.model.decoder import Decoder


def batch(subject: Subject) -> Verdict:
    """Bit for bit, the size of the batch being the same.

    A loss that depends on its neighbours depends on `eval.batch_tokens`, and on how many processes share it.
    """
    model = subject.fresh()
    ids = tokens(model, subject.train_length, batch=4)
    others = ids.clone()
    others[1:] = (others[1:] + 1) % model.vocab_size
    for training in (True, False):
        alone, beside = _made(model, ids, training)[0], _made(model, others, training)[0]
        where = "in training" if training else "in evaluation"
        off = f"{largest(alone, beside):.1e}"
        require(torch.equal(alone, beside), f"other texts in the batch move a text's logits {where}", off)
    return Verdict("pass", "bit for bit beside three others")


def repeat(subject: Subject) -> Verdict:
    """Two forward passes, the process's own stream of random numbers elsewhere.

    It is neither seeded by a run nor saved with it: what draws from it is another training after each resume.
    """
    model = subject.fresh()
    ids = tokens(model, subject.train_length)
    for training in (True, False):
        made = []
        with torch.random.fork_rng():
            for seed in (0, 1):
                torch.manual_seed(seed)
                made.append(_made(model, ids, training))
        where = "in training" if training else "in evaluation"
        reason = f"the same text has other logits the second time {where}"
        require(torch.equal(*made), reason, f"{largest(*made):.1e}")
    return Verdict("pass", "bit for bit, twice")


@torch.no_grad()
def _made(model: Decoder, ids: Tensor, training: bool) -> Tensor:
    out: Tensor = model.train(training)(ids, model.positions(ids.shape[1], generator_for(0, "law")))
    return out

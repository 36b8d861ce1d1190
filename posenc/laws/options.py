"""The law of options: each acts together with the encoding, or is refused by name."""

from __future__ import annotations

from typing import Any

import torch

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.laws.subject import LONGEST, Subject, logits, tokens
from posenc.laws.verdict import Verdict, require


def options(subject: Subject) -> Verdict:
    """Finite and causal at T and at the longest window, or a UserError that has the option's name."""
    taken, refused = [], []
    for option, changes in _options(subject.train_length).items():
        try:
            model = subject.fresh(**changes)
        except UserError as error:
            require(option in error.text(), f"{option} is refused without being named: {error.text()}")
            refused.append(option)
            continue
        taken.append(option)
        model.train()
        model(
            tokens(model, subject.train_length),
            model.positions(subject.train_length, generator_for(0, "law")),
        )
        n = subject.longest(LONGEST)
        ids = tokens(model, n)
        changed = ids.clone()
        changed[:, n // 2 :] = (changed[:, n // 2 :] + 1) % model.vocab_size
        before, after = logits(model, ids), logits(model, changed)
        require(bool(before.isfinite().all()), f"with {option}: not finite at {n} tokens")
        same = torch.equal(before[:, : n // 2], after[:, : n // 2])
        require(same, f"with {option}: the future changes logits of the past")
    return Verdict("pass", ", ".join(taken), f"refused: {', '.join(refused)}" if refused else "")


def _options(length: int) -> dict[str, dict[str, Any]]:
    """What is laid over the settings for each option."""
    return {
        "per_layer": {"encoding": {"per_layer": True}},
        "randomized": {"positions": {"name": "randomized", "max": None, "dense": False}},
        "offset": {"positions": {"name": "offset", "max": None}},
        "window": {"attention": {"window": length // 2}},
        "logn": {"attention": {"scale": "logn"}},
        "ssmax": {"attention": {"scale": "ssmax"}},
    }

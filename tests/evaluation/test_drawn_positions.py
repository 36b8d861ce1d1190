"""Evaluation where positions are drawn: by seed, length and the window's number, never by the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tiny_model import T, build

from posenc.core.seeds import generator_for
from posenc.data import TokenStore
from posenc.evaluation.forward_cache import DRAWS, EvalContext, window_losses

COUNT, WANTED = 2 * DRAWS + 5, 4


def subject(store: TokenStore, name: str, batch: int) -> EvalContext:
    model = build(name, store, positions={"name": "randomized", "max": None, "dense": False})
    with torch.no_grad():
        for key, parameter in model.named_parameters():  # attention that matters
            if "attention" in key and parameter.ndim == 2:
                parameter.mul_(3)
    return EvalContext(model, T, 0, "fp32", torch.device("cpu"), store, "test", batch)


def losses(of: EvalContext, window: int, count: int = COUNT) -> np.ndarray:
    def read(i: int) -> np.ndarray:
        return of.store.tokens[7 * i : 7 * i + window + 1]

    return window_losses(of, read, count, window, WANTED)


@torch.no_grad()
def loss_by_hand(of: EvalContext, window: int, i: int, target: int, pos: torch.Tensor) -> float:
    tokens = torch.from_numpy(of.store.tokens[7 * i : 7 * i + window + 1].astype(np.int64))
    logits = of.model(tokens[None, : target + 1], pos[: target + 1])[0, -1].double()
    return math.log(sum(math.exp(x) for x in logits.tolist())) - logits[tokens[target + 1]].item()


@pytest.mark.parametrize("window", [T // 2, T, 4 * T])
@pytest.mark.parametrize(("name", "batch"), [("rope", 10**6), ("learned", 3 * T)])
def test_losses_are_those_at_the_positions_of_the_window(
    store: TokenStore, name: str, batch: int, window: int
) -> None:
    of = subject(store, name, batch)
    got = losses(of, window)
    for i in (0, 1, DRAWS - 1, DRAWS, 2 * DRAWS + 4):
        pos = of.model.eval().positions(window, generator_for(0, "evaluation", window, i % DRAWS))
        for place in range(WANTED):
            want = loss_by_hand(of, window, i, window - WANTED + place, pos)
            assert got[i, place] == pytest.approx(want, abs=1e-4), (i, place)

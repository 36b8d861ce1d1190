"""The curve over positions of losses that are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiny_model import T
from token_stores import ask, store_of

from posenc.evaluation import positions
from posenc.evaluation.forward_cache import EvalContext, LossSums
from posenc.evaluation.positions import bin_edges, curve_of

LONG = 8 * T
AT = np.arange(1, LONG + 1)  # positions
DOCUMENTS = 40
SubjectOf = Callable[..., EvalContext]


def bumpy(spread: float, rows: int = DOCUMENTS) -> np.ndarray:
    """What documents differ by: (N, 1) nats, of mean zero."""
    return np.linspace(-spread, spread, rows)[:, None]


def measured(subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch, nats: np.ndarray) -> LossSums:
    """The protocol with these losses (N, 8T) in place of the model's."""
    store = store_of([bytes(2 * LONG + 1)] * len(nats))
    plan = positions.plan(ask(store, [T, LONG], max_targets=10**9))
    assert len(plan.starts) == len(nats)
    asked: list[Any] = []

    def planted(subject: EvalContext, stops: np.ndarray, window: int, wanted: int) -> np.ndarray:
        asked.append((len(stops), window, wanted))
        return nats

    monkeypatch.setattr(positions, "text_losses", planted)
    sums = positions.measure(subject_of("nope", tokens=store), plan, LONG)
    assert asked == [(len(nats), LONG, LONG)]
    return sums


def test_a_planted_slope_and_rise_are_found(subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Level 2, then 0.003 nats more for every token past T; documents differ by up to 1 nat."""
    past = np.maximum(0, AT - T)
    sums = measured(subject_of, monkeypatch, 2 + 0.003 * past + bumpy(1.0))
    curve = sums.curve
    assert curve is not None and curve["level"] == pytest.approx(2)
    assert curve["slope"] == pytest.approx(0.003)
    low, high = curve["slope_ci95"] or [np.nan, np.nan]
    assert low == pytest.approx(0.003) == high  # documents differ by a constant alone
    for a, b, rise, interval in zip(
        curve["edges"], curve["edges"][1:], curve["rise"], curve["rise_ci95"], strict=False
    ):
        want = 0.003 * np.mean([max(0, p - T) for p in range(a, b)])
        assert rise == pytest.approx(want, abs=1e-12)
        assert interval == pytest.approx([want, want], abs=1e-9)
    # the bin's mean passes 0.1 nats 33 tokens past T
    breaks = curve["breaks_at"]
    assert breaks is not None
    index = curve["edges"].index(breaks)
    assert curve["rise"][index] > 0.1 >= curve["rise"][index - 1] and breaks > T
    assert sums.nats.sum() == pytest.approx(DOCUMENTS * (2 * LONG + 0.003 * past.sum()))
    assert (sums.targets == LONG).all() and sums.documents.tolist() == list(range(DOCUMENTS))


def test_a_step_breaks_where_it_is(subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, T // 2 + 1, 2 * T + 1, 4 * T + 1):  # before T it lifts the level too, or comes too early
        nats = np.where(step <= AT, 3.0, 2.0) + bumpy(0.5)
        curve = measured(subject_of, monkeypatch, nats).curve
        assert curve is not None and curve["breaks_at"] == (step if step > T else None)


@pytest.mark.parametrize(("height", "breaks"), [(0.099, False), (0.101, True)])
def test_a_break_is_more_than_a_tenth_of_a_nat(height: float, breaks: bool) -> None:
    nats = np.where(AT > 2 * T, 2 + height, 2.0) + bumpy(0.5)
    assert (curve_of(nats, np.arange(DOCUMENTS), T)["breaks_at"] is not None) == breaks


def test_a_break_needs_the_whole_interval() -> None:
    """A rise of 3 nats in a tenth of the documents, 0.3 on average: the interval reaches below 0.1."""
    nats = np.full((DOCUMENTS, LONG), 2.0)
    nats[: DOCUMENTS // 10, T:] += 3
    curve = curve_of(nats, np.arange(DOCUMENTS), T)
    assert curve["rise"][-1] > 0.29 and curve["breaks_at"] is None
    assert curve["rise_ci95"][-1][0] < 0.1


@pytest.mark.parametrize("train_length", [2, 3, 16, 100])
@pytest.mark.parametrize("times", [1, 2, 8, 33])
def test_bins_tile_the_positions(train_length: int, times: int) -> None:
    window = train_length * times
    edges = bin_edges(train_length, window)
    assert edges[0] == 1 and edges[-1] == window + 1 and (np.diff(edges) > 0).all()
    assert train_length + 1 in edges
    for multiple in (2, 4):
        assert multiple * train_length + 1 in edges or multiple * train_length >= window
    wide = [(a, b) for a, b in itertools.pairwise(edges) if b - a > 1]
    assert all(b / a < 1.6 for a, b in wide)  # a quarter of an octave is a factor of 1.19

"""Passes that several cells ask for: made once, with the numbers that each would have got alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tiny_model import T
from token_stores import store_of

from posenc.encodings.base import Encoding
from posenc.evaluation import forward_cache as passes_module
from posenc.evaluation import forward_cache as subject_module
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.forward_cache import EvalContext, ForwardCache, text_losses
from posenc.results.schema import Record

Measured = Callable[..., dict[tuple[str, int], Record]]
SubjectOf = Callable[..., EvalContext]
WINDOWS = [T // 2, T, 4 * T]


@pytest.fixture
def windows_passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every window that went through the model, a number for each."""
    made: list[int] = []
    forward = subject_module._forward

    def counted(
        subject: EvalContext, batch: torch.Tensor, pos: torch.Tensor, acting: Encoding, wanted: int
    ) -> torch.Tensor:
        made.extend([batch.shape[1] - 1] * len(batch))
        return forward(subject, batch, pos, acting, wanted)

    monkeypatch.setattr(subject_module, "_forward", counted)
    return made


def without_seconds(records: dict[tuple[str, int], Record]) -> dict[tuple[str, int], Any]:
    return {cell: {**record, "seconds": 0} for cell, record in records.items()}


@pytest.mark.parametrize(
    ("name", "changes", "saved"),
    [
        ("rope", {"protocols": ["nonoverlapping", "positions"]}, {4 * T}),
        ("rope", {"protocols": ["positions", "fixed-target", "nonoverlapping"]}, {4 * T}),
        ("rope", {"protocols": ["nonoverlapping", "sliding"], "stride": T // 2}, {T // 2}),
        ("rope", {"protocols": ["fixed-target", "sliding"]}, set()),  # windows that lie elsewhere
        ("learned", {"protocols": ["fixed-target"], "beyond": "truncate"}, {T}),
    ],
    ids=str,
)
def test_sharing_changes_no_number_and_saves_passes(
    subject_of: SubjectOf,
    measured: Measured,
    monkeypatch: pytest.MonkeyPatch,
    windows_passed: list[int],
    name: str,
    changes: dict[str, Any],
    saved: set[int],
) -> None:
    params = {key: changes.pop(key) for key in ("beyond",) if key in changes}
    subject = subject_of(name, **params)
    shared = measured(subject, WINDOWS, **changes)
    with_sharing = sorted(windows_passed)
    windows_passed.clear()
    monkeypatch.setattr(ForwardCache, "get", lambda self, key: None)
    alone = measured(subject, WINDOWS, **changes)
    assert without_seconds(shared) == without_seconds(alone)
    fewer = {window for window in windows_passed if windows_passed.count(window) > with_sharing.count(window)}
    assert fewer == saved


def test_an_extension_shares_where_it_changes_nothing(subject_of: SubjectOf) -> None:
    plain = dataclasses.replace(subject_of("rope"), cache=ForwardCache())
    extended = dataclasses.replace(plain, extension=build_extension({"name": "dynamic_ntk"}, plain.model))
    other = dataclasses.replace(plain, extension=build_extension({"name": "pi", "factor": 3}, plain.model))
    stops = np.array([5 * T, 6 * T])
    same = [text_losses(one, stops, T, 4) for one in (plain, extended)]
    assert same[0] is same[1]
    apart = [text_losses(one, stops, 4 * T, 4) for one in (plain, extended, other)]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in ((apart[0], apart[1]), (apart[1], apart[2])))


@pytest.mark.parametrize("change", ["stops", "window", "n_targets", "store", "model"])
def test_another_pass_is_another(subject_of: SubjectOf, change: str) -> None:
    subject = dataclasses.replace(subject_of("rope"), cache=ForwardCache())
    asked = {"stops": np.array([5 * T, 6 * T]), "window": 2 * T, "n_targets": 4}
    first = text_losses(subject, **asked)
    if change == "store":
        subject = dataclasses.replace(subject, store=store_of([bytes(range(30, 200))]))
    elif change == "model":
        subject = dataclasses.replace(subject, model=subject_of("alibi").model)
    else:
        asked[change] = {"stops": np.array([5 * T, 6 * T + 1]), "window": T, "n_targets": 3}[change]
    assert not np.array_equal(text_losses(subject, **asked)[:, -1], first[:, -1]) or change == "n_targets"
    assert text_losses(subject, **asked).shape == (2, asked["n_targets"])


def test_what_is_kept_is_bounded_and_read_only(
    subject_of: SubjectOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ForwardCache()
    subject = dataclasses.replace(subject_of("rope"), cache=kept)
    monkeypatch.setattr(passes_module, "MAX_BYTES", 3 * 2 * 4 * 8)  # three passes of 2 x 4 targets
    stops = [np.array([5 * T, 6 * T]) + i for i in range(4)]
    losses = [text_losses(subject, one, T, 4) for one in stops]
    assert text_losses(subject, stops[1], T, 4) is losses[1]
    again = text_losses(subject, stops[0], T, 4)  # it had to go
    assert again is not losses[0] and np.array_equal(again, losses[0])
    with pytest.raises(ValueError, match="read-only"):
        losses[1][0, 0] = 0
    large = text_losses(subject, np.arange(5 * T, 6 * T), T, 4)  # more than may be kept
    assert text_losses(subject, np.arange(5 * T, 6 * T), T, 4) is not large

"""Cells with a test-time extension: the crop line as trained, one measurement where nothing is extended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_model import T

from posenc.evaluation import PROTOCOLS
from posenc.evaluation import forward_cache as subject_module
from posenc.evaluation.evaluate import evaluate, plan_cells
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.plans import EvalRequest
from posenc.evaluation.tune import candidates, tune
from posenc.results.schema import Record

SubjectOf = Callable[..., EvalContext]
AskedOf = Callable[..., EvalRequest]
WINDOWS = [T // 2, T, 2 * T, 4 * T]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The window of every forward pass."""
    made: list[int] = []
    forward = subject_module._forward

    def counted(subject: EvalContext, batch: Any, pos: Any, acting: Any, wanted: int) -> Any:
        made.append(len(pos))
        return forward(subject, batch, pos, acting, wanted)

    monkeypatch.setattr(subject_module, "_forward", counted)
    return made


@pytest.fixture
def records_of(
    tmp_path: Path, asked_of: AskedOf, few_sequences: None
) -> Callable[[EvalContext, list[str]], list[Record]]:
    """Records of the cells in their order, stored in one folder."""

    def go(subject: EvalContext, protocols: list[str]) -> list[Record]:
        cells = plan_cells(subject, asked_of(WINDOWS), protocols)
        return evaluate(cells, tmp_path / "run", corpus="files", checkpoint_step=1)

    return go


def extended(subject: EvalContext, **settings: Any) -> EvalContext:
    return dataclasses.replace(subject, extension=build_extension(settings, subject.model))


def numbers(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("extend", "seconds")}


def test_where_nothing_is_extended_one_measurement_serves_both(
    subject_of: SubjectOf, records_of: Any, passes: list[int]
) -> None:
    """dynamic_ntk up to T is the model as trained: measured once, stored under both names."""
    subject = extended(subject_of("rope"), name="dynamic_ntk")
    records = {(r["window"], r["extend"] is not None): r for r in records_of(subject, ["fixed-target"])}
    assert set(records) == {(T, False), *((window, True) for window in WINDOWS)}
    assert numbers(records[T, True]) == numbers(records[T, False])
    assert records[T, True]["extend"]["name"] == "dynamic_ntk"
    counts = {window: passes.count(window) for window in WINDOWS}
    passes.clear()

    plain = records_of(dataclasses.replace(subject, extension=None), ["fixed-target"])
    assert set(passes) == {2 * T, 4 * T}  # T/2 was stored on the way
    for record in plain:
        same = numbers(record) == numbers(records[record["window"], True])
        assert same == (record["window"] <= T) and record["extend"] is None
    assert {window: passes.count(window) for window in (2 * T, 4 * T)} == {
        window: counts[window] for window in (2 * T, 4 * T)
    }


def test_an_extension_changes_no_target(subject_of: SubjectOf, records_of: Any) -> None:
    subject = subject_of("rope")
    protocols = sorted(PROTOCOLS)
    plain = {(r["protocol"], r["window"]): r for r in records_of(subject, protocols)}
    for record in records_of(extended(subject, name="pi"), protocols):
        of = plain[record["protocol"], record["window"]]
        same = ("targets_hash", "targets", "documents", "unit", "stride")
        assert all(record[key] == of[key] for key in same)
        assert (record["nats"] != of["nats"]) == (record["extend"] is not None and record["window"] > T)


def test_a_formula_that_was_revised_is_measured_anew(
    subject_of: SubjectOf, records_of: Callable[..., list[Record]], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = extended(subject_of("rope"), name="pi", factor=2.0)
    before = records_of(subject, ["fixed-target"])
    assert records_of(subject, ["fixed-target"]) == before
    assert all("revision" not in (record["extend"] or {}) for record in before)
    monkeypatch.setattr(type(subject.extension), "revision", 2)
    after = records_of(subject, ["fixed-target"])
    assert {record["extend"]["revision"] for record in after if record["extend"]} == {2}


def test_nothing_is_called_chosen_where_nothing_has_a_number(
    subject_of: SubjectOf, asked_of: AskedOf
) -> None:
    subject = subject_of("rope")
    grid = candidates(build_extension({"name": "window"}, subject.model), subject.model)
    asked = asked_of(WINDOWS)
    nothing = tune(subject, asked, grid, lambda cells: [{"nats": None}])  # type: ignore[list-item]
    assert "tuned_on" not in nothing[0].settings and "none of" in nothing[1]
    losses = iter([None, 1.0, *[2.0] * len(grid)])
    chosen = tune(subject, asked, grid, lambda cells: [{"nats": next(losses)}])  # type: ignore[list-item]
    assert chosen[0] is grid[1] and chosen[0].settings["tuned_on"] == "validation"

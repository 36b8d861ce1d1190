from __future__ import annotations

import math
from typing import Any

from posenc.tracking.metrics import COLUMNS, apart, by_window, curve_name, summary, table_rows


def record(protocol: str, window: int, nats: float | None, **more: Any) -> dict[str, Any]:
    bpb = None if nats is None else nats / math.log(2)
    ppl = None if nats is None else math.exp(nats) if nats < 700 else math.inf
    figures = {"nats": nats, "bpb": bpb, "ppl": ppl}
    return {"protocol": protocol, "window": window, "multiple": window / 64, **figures, **more}


def test_what_could_not_be_measured_is_left_out_not_drawn_as_zero() -> None:
    records = [
        record("fixed-target", 64, 1.0),
        record("fixed-target", 128, 800.0),
        record("fixed-target", 256, None, note="oom"),
        record("fixed-target", 512, math.nan),
    ]
    rows = by_window(records, {})
    assert [row["eval/window"] for row in rows] == [64, 128]
    assert "eval/fixed-target/ppl" not in rows[1]
    assert summary(records, {}) == {"eval/fixed-target/nats@1x": 1.0, "eval/fixed-target/nats@2x": 800.0}
    table = [dict(zip(COLUMNS, row, strict=True)) for row in table_rows(records, {})]
    assert [row["nats"] for row in table] == [1.0, 800.0, None, None]


def test_what_is_measured_in_another_way_is_a_curve_of_its_own() -> None:
    config = {
        "data": {"name": "sympy"},
        "context_length": 64,
        "eval": {"split": "test", "stride": None, "target_fraction": 0.25},
    }
    own = {"corpus": "sympy", "split": "test", "stride": None, "extend": None}
    ways: list[tuple[dict[str, Any], str]] = [
        ({}, "sliding"),
        ({"stride": 16}, "sliding"),  # a target block
        ({"stride": 8}, "sliding stride 8"),
        ({"corpus": "stdlib"}, "sliding on stdlib"),
        ({"split": "validation"}, "sliding validation"),
        ({"extend": {"name": "pi", "factor": "auto"}}, "sliding+pi"),
        ({"extend": {"name": "pi", "factor": 4, "resolved": {"factor": 4}}}, "sliding+pi factor=4"),
    ]
    records = [record("sliding", 64, float(i), **{**own, **more}) for i, (more, _) in enumerate(ways)]
    assert [curve_name(one, config) for one in records] == [name for _, name in ways]
    (row,) = by_window(records, config)
    assert {f"eval/{name}/nats" for _, name in ways} <= set(row)
    assert len(summary(records, config)) == len(ways) - 1  # the first two are one


def test_other_targets_are_other_curves() -> None:
    config = {"context_length": 64, "eval": {"lengths": ["1x", "8x"], "target_fraction": 0.25}}
    own = [record("fixed-target", w, 1.0) | {"targets_hash": "a", "targets": 300} for w in (64, 512)]
    far = [record("fixed-target", w, 2.0) | {"targets_hash": "b", "targets": 280} for w in (64, 1024)]
    few = [record("fixed-target", w, 3.0) | {"targets_hash": "c", "targets": 40} for w in (64, 512)]
    each = [record("sliding", w, 1.0) | {"targets_hash": f"{w}"} for w in (64, 512)]
    for records in (own + far + few + each, each + few + far + own):
        found = summary(apart(records, config), config)
        assert found == {
            "eval/fixed-target/nats@1x": 1.0,
            "eval/fixed-target/nats@8x": 1.0,
            "eval/fixed-target on 280 targets/nats@1x": 2.0,
            "eval/fixed-target on 280 targets/nats@16x": 2.0,
            "eval/fixed-target on 40 targets/nats@1x": 3.0,
            "eval/fixed-target on 40 targets/nats@8x": 3.0,
            "eval/sliding/nats@1x": 1.0,
            "eval/sliding/nats@8x": 1.0,
        }
    alone = summary(apart(far, config), config)  # nothing to be kept apart from
    assert list(alone) == ["eval/fixed-target/nats@1x", "eval/fixed-target/nats@16x"]

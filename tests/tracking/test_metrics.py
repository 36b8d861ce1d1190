import math

from posenc.tracking.base import by_window, curves_of, summary


def record(protocol, window, nats, **more):
    ppl = None if nats is None else math.exp(nats) if nats < 700 else math.inf
    figures = {"nats": nats, "ppl": ppl, "targets_hash": "a"}
    return {"protocol": protocol, "window": window, "multiple": window / 64, **figures, **more}


def test_what_could_not_be_measured_is_left_out_not_drawn_as_zero():
    figures = {64: 1.0, 128: 800.0, 256: None, 512: math.nan}
    curves = curves_of([record("fixed-target", *one) for one in figures.items()], {})
    rows = by_window(curves)
    assert list(rows) == [64, 128] and "eval/fixed-target/ppl" not in rows[128]
    assert summary(curves) == {"eval/fixed-target/nats@1x": 1.0, "eval/fixed-target/nats@2x": 800.0}


def test_other_text_and_extensions_are_curves_of_their_own_other_targets_and_strides_are_left_out():
    config = {"data": {"name": "sympy"}, "context_length": 64, "eval": {"split": "test"}}
    own = {"corpus": "sympy", "split": "test", "stride": None, "extend": None}
    ways = [
        ({}, "sliding"),
        ({"corpus": "stdlib"}, "sliding on stdlib"),
        ({"split": "validation"}, "sliding validation"),
        ({"extend": {"name": "pi", "factor": "auto"}}, "sliding+pi"),
        ({"extend": {"name": "pi", "factor": 4, "resolved": {"factor": 4}}}, "sliding+pi factor=4"),
    ]
    records = [record("sliding", 64, float(i), **{**own, **more}) for i, (more, _) in enumerate(ways)]
    (row,) = by_window(curves_of(records, config)).values()
    assert {f"eval/{name}/nats" for _, name in ways} <= set(row)
    both = [record("sliding", w, 1.0, **{**own, "stride": 16, "targets_hash": f"{w}"}) for w in (64, 512)]
    fine = record("sliding", 64, 2.0, **{**own, "stride": 8, "targets_hash": "b"})
    assert summary(curves_of([fine, *both], config)) == {
        "eval/sliding/nats@1x": 1.0,
        "eval/sliding/nats@8x": 1.0,
    }
    far = record("fixed-target", 1024, 3.0, targets_hash="b")
    found = summary(curves_of([far, *(record("fixed-target", w, 1.0) for w in (64, 512))], config))
    assert list(found) == ["eval/fixed-target/nats@1x", "eval/fixed-target/nats@8x"]

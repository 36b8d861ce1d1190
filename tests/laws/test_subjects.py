"""What laws are judged on: models, positions, windows, everything in float64."""

from __future__ import annotations

import pytest
import torch
from subjects import SETTINGS, named

from posenc.cli.check import SHORT, subject_of
from posenc.core.errors import UserError
from posenc.laws.numbers import Float64, far_positions
from posenc.laws.subject import FAR, logits, tokens


def test_windows_end_where_positions_do() -> None:
    positions = {"name": "randomized", "max": 100, "dense": False}
    drawn = subject_of({**SETTINGS, "encoding": named("rope").settings, "positions": positions})
    assert drawn.longest() == 64 and drawn.windows([8, 100, 101]) == [8, 100]
    assert drawn.bounded is None


def test_models_of_a_subject_are_new_and_not_zero() -> None:
    subject = named("t5")
    one, other = subject.fresh(), subject.fresh()
    assert one is not other and one.encoding.table is not other.encoding.table
    assert one.encoding.table.any() and torch.equal(one.encoding.table, other.encoding.table)
    assert not subject.build(0).encoding.table.any()
    with pytest.raises(UserError, match="no_such"):
        subject.fresh(encoding={"no_such": 1})


def test_in_float64_everything_is() -> None:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(4, generator=generator)
    with Float64():
        x = torch.arange(3).float()
        made = [x.half(), x.to(torch.bfloat16), torch.zeros(2, dtype=torch.float32), torch.arange(3) / 2]
        made += [torch.nn.Linear(2, 2).weight, x.type(torch.float32), x.softmax(0, dtype=torch.float32)]
        assert {t.dtype for t in made} == {torch.float64}
        again = torch.randn(4, generator=generator.manual_seed(3))
        filled = torch.empty(4).normal_(generator=generator.manual_seed(3))
        assert torch.arange(3).dtype == torch.int64 and x.bool().dtype == torch.bool
    assert torch.equal(again, drawn.double()) and torch.equal(filled, drawn.double())
    with pytest.raises(ZeroDivisionError), Float64():
        raise ZeroDivisionError
    assert torch.get_default_dtype() == torch.float32


def test_positions_given_reach_the_attention() -> None:
    """On its own the kernel counts distances from the tokens' places."""
    subject = named("alibi")
    ids = tokens(subject.fresh(), 2 * SHORT)
    pos = far_positions(subject.fresh(), SHORT)
    assert pos.tolist()[:2] == [0, 1] and pos.tolist()[-1] == FAR - 1
    counted, given = logits(subject.fresh(), ids, pos), logits(subject.anywhere(subject.fresh()), ids, pos)
    assert torch.equal(counted[:, :SHORT], given[:, :SHORT])
    assert not torch.equal(counted[:, SHORT:], given[:, SHORT:])

import math

import formulas_absolute
import pytest
import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding
from posenc.encodings.hybrid import Hybrid
from posenc.encodings.learned import Learned

T, WIDTH = 6, 16


def made(name: str = "hybrid", width: int = WIDTH, **params: object) -> Hybrid:
    encoding = build_encoding(
        name, d_model=width, n_heads=2, head_dim=width // 2, n_layers=2, train_length=T, **params
    )
    with torch.no_grad():
        for key, parameter in encoding.named_parameters():
            encoding.initialize(key, parameter, generator_for(0, key))
    return encoding  # type: ignore[return-value]


def rows(encoding: Hybrid | Learned, positions: list[int], layer: int = 0) -> Tensor:
    nothing = torch.zeros(1, len(positions), encoding.shape.d_model)
    return encoding.embed(nothing, torch.tensor(positions), layer)[0].detach()


@pytest.mark.parametrize("share, learned", [(0.25, 4), (0.5, 8), (0.01 + 1 / 16, 1), (0.9, 14), (0.3, 5)])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_formula(share: float, learned: int, base: float) -> None:
    encoding = made(learned_share=share, base=base)
    assert encoding.table.shape == (1, T, learned)
    x = torch.randn(2, T, WIDTH, generator=torch.Generator().manual_seed(1))
    got = encoding.embed(x, torch.arange(T), 0)
    for t in range(T):
        row = formulas_absolute.hybrid(t, encoding.table[0, t].tolist(), WIDTH, base)
        want = x[:, t].double() * math.sqrt(WIDTH) + torch.tensor(row, dtype=torch.float64)
        assert (got[:, t].double() - want).abs().max() < 2e-6


@pytest.mark.parametrize("share", [0.25, 0.3, 1 / 3, 0.9, 13.5 / 16])
def test_declared_parameter_count_of_a_share_that_is_no_whole_number(share: float) -> None:
    given = {"T": T, "d": WIDTH, "L": 2, "learned_share": share, "combine": "add", "per_layer": True}
    declared = eval(str(Hybrid.learned), {"__builtins__": {}}, given)
    assert declared == made(learned_share=share, per_layer=True).table.numel()


def test_published_split() -> None:
    assert made(width=512).table.shape[-1] == 128


def test_each_part_stands_to_the_tokens_as_in_its_own_encoding() -> None:
    width = 1024
    encoding, positions = made(width=width, learned_share=0.5), list(range(T))
    token = torch.randn(4096, generator=torch.Generator().manual_seed(0)) * width**-0.5 * width**0.5
    got = rows(encoding, positions)
    learned = rows(made("learned", width=width), positions)
    ratio = got[:, :512].std() / token.std()
    assert ratio.item() == pytest.approx((learned.std() * width**0.5).item(), rel=0.05)
    fixed = rows(made("sinusoidal", width=512), positions)
    assert torch.equal(got[:, 512:], fixed)


@pytest.mark.parametrize("layer", [0, 1])
def test_untrained_rows_past_the_table(layer: int) -> None:
    encoding = made(width=512, per_layer=True)
    inside, past = rows(encoding, [T - 1], layer), rows(encoding, list(range(400)), layer)
    assert torch.equal(past[T - 1], inside[0])
    assert past[T:, :128].std().item() == pytest.approx(1, rel=0.02)  # sqrt(d) d^-1/2
    assert abs(past[T:, :128].mean().item()) < 0.02
    assert len(past[:, :128].unique(dim=0)) == 400
    assert torch.equal(rows(made(width=512, per_layer=True), [300], layer)[0], past[300])


def test_sinusoids_go_on_whatever_the_policy() -> None:
    far, learned = [0, 4 * T, 65536], WIDTH // 4
    for beyond in ("untrained", "clamp"):
        encoding = made(beyond=beyond)
        got = rows(encoding, far)
        for n, t in enumerate(far):
            row = formulas_absolute.hybrid(t, [0.0] * learned, WIDTH, 10000.0)
            assert got[n, learned:].tolist() == pytest.approx(row[learned:], abs=1e-7)
        if beyond == "clamp":
            last = encoding.table[0, T - 1] * WIDTH**0.5
            assert torch.equal(got[1:, :learned], last.detach().expand(2, -1))


@pytest.mark.parametrize("beyond", ["truncate", "refuse"])
def test_refused_past_the_table(beyond: str) -> None:
    encoding = made(beyond=beyond)
    assert encoding.beyond == beyond
    with pytest.raises(
        ValueError, match=f"hybrid: rows end at {T}, beyond={beyond} has none for position {T}"
    ):
        rows(encoding, list(range(T + 1)))


def test_rows_are_as_many_as_training_draws_from() -> None:
    encoding = made(position_limit=5 * T, beyond="refuse")
    assert encoding.table.shape == (1, 5 * T, WIDTH // 4)
    assert rows(encoding, [0, 5 * T - 1]).shape == (2, WIDTH)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 1.5, 0.01, 0.99, math.nan])
def test_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="learned_share="):
        made(learned_share=share)


def test_base_out_of_range_is_refused() -> None:
    with pytest.raises(UserError, match=r"base=0\.5: must be"):
        made(base=0.5)

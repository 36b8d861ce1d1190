import formulas
import pytest
import torch
from formulas_bias import started

from posenc.encodings import build_encoding
from posenc.encodings.alibi import ALiBi, slopes


def alibi(heads: int) -> ALiBi:
    encoding = build_encoding(
        "alibi", d_model=4 * heads, n_heads=heads, head_dim=4, n_layers=1, train_length=8
    )
    assert isinstance(encoding, ALiBi)
    return encoding


def learned(heads: int) -> ALiBi:
    """As it starts."""
    encoding = started("alibi", heads, learned_slopes=True)
    assert isinstance(encoding, ALiBi)
    return encoding


def test_slopes_of_eight_and_twelve_heads() -> None:
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(8) == eight
    assert slopes(12) == pytest.approx([*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rel=1e-15)
    assert slopes(1) == [2**-8]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20])
def test_formula(heads: int) -> None:
    r = torch.tensor([0, 1, 2, 63, 255, 256, 257, 8191, 65536])
    bias = alibi(heads).distance_bias(r, 0)
    assert bias.shape == (heads, len(r)) and bias.dtype == torch.float32
    for h in range(heads):
        for column, distance in enumerate(r.tolist()):
            want = -formulas.alibi_slope(h + 1, heads) * distance
            assert bias[h, column].item() == pytest.approx(want, rel=1e-7, abs=0)


def test_sign_is_a_penalty() -> None:
    bias = alibi(4).distance_bias(torch.arange(100), 0)
    assert (bias[:, 0] == 0).all()
    assert (bias.diff(dim=-1) < 0).all()


def test_matrix_by_two_positions_is_causal_distance_and_shift_invariant() -> None:
    encoding, pos = alibi(4), torch.arange(9)
    bias = encoding.bias(pos, pos, 0)  # (H, T, S)
    for h in range(4):
        for i in range(9):
            for j in range(i + 1):
                assert bias[h, i, j].item() == -slopes(4)[h] * (i - j)
    assert torch.equal(encoding.bias(pos + 1000, pos + 1000, 0), bias)


def test_near_keys_stay_distinct_at_a_long_context_in_bf16() -> None:
    # made of bf16 key indices only 3 of the 64 nearest biases would differ at 8k
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pos = torch.arange(8192)
        bias = alibi(8).bias(pos[-1:], pos, 0)[0, 0, -64:]
    assert bias.dtype == torch.float32
    assert len(bias.unique()) == 64


def test_nothing_is_learned_or_saved() -> None:
    assert list(alibi(4).parameters()) == []
    assert alibi(4).state_dict() == {}


@pytest.mark.parametrize("heads", [1, 4, 6])
def test_learned_slopes_start_at_the_published_ones(heads: int) -> None:
    encoding = learned(heads)
    assert {name: p.shape for name, p in encoding.named_parameters()} == {"slope": (heads,)}
    assert set(encoding.state_dict()) == {"slope"} and not encoding.decayed
    bias = encoding.distance_bias(torch.tensor([0, 1, 64, 65536]), 0)
    assert bias.dtype == torch.float32
    for h in range(heads):
        want = [-formulas.alibi_slope(h + 1, heads) * r for r in (0, 1, 64, 65536)]
        assert bias[h].tolist() == pytest.approx(want, rel=2e-6)


def test_learned_slopes_learn() -> None:
    """d(-m r)/d(log m) = -m r, for each head from its own distances."""
    encoding, r = learned(4), torch.tensor([0, 3, 10])
    loss = torch.tensor([[1.0, 2.0, -1.0], [0.0, 1.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    (encoding.distance_bias(r, 0) * loss).sum().backward()
    assert encoding.slope is not None and encoding.slope.grad is not None
    want = [-m * total for m, total in zip(slopes(4), (6 - 10, 3, 0, 20), strict=True)]
    assert encoding.slope.grad.tolist() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("gain", [1.0, -1.0])
def test_learned_slopes_stay_positive_whatever_training_does(gain: float) -> None:
    encoding, r = learned(4), torch.arange(64)
    optimiser = torch.optim.Adam(encoding.parameters(), lr=1.0)
    for _ in range(30):
        optimiser.zero_grad()
        (gain * encoding.distance_bias(r, 0).sum()).backward()
        optimiser.step()
    bias = encoding.distance_bias(r, 0)
    assert bias.isfinite().all() and (bias.diff(dim=-1) < 0).all()
    steeper = bias[:, 1] < alibi(4).distance_bias(r, 0)[:, 1]
    assert steeper.all() if gain > 0 else not steeper.any()


def test_learned_slopes_are_shared_by_layers_and_float32_under_autocast() -> None:
    encoding, pos = learned(4), torch.arange(8192)
    want = encoding.bias(pos[-1:], pos, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoding.bias(pos[-1:], pos, 1), want)
    assert len(want[0, 0, -64:].unique()) == 64

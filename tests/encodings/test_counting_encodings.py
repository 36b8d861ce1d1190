"""integer, normalized and binary: controls that count."""

import formulas_absolute
import pytest
import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.binary import Binary
from posenc.model.decoder import Decoder, ModelShape, initialize

WIDTH, T = 8, 64
POSITIONS = [0, 1, 2, 3, 63, 64, 255, 256, 257, 4096, 32767, 65535]
COUNTING = ["integer", "normalized", "binary"]


def counting(name: str, width: int = WIDTH, train_length: int = T, **params: object) -> Encoding:
    made = build_encoding(
        name,
        d_model=width,
        n_heads=2,
        head_dim=width // 2,
        n_layers=2,
        train_length=train_length,
        **params,
    )
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            made.initialize(key, parameter, generator_for(0, key))
    return made


def rows(made: Encoding, positions: list[int]) -> Tensor:
    """What is added at these positions: (n, d)."""
    nothing = torch.zeros(1, len(positions), made.shape.d_model, dtype=next(made.parameters()).dtype)
    return made.embed(nothing, torch.tensor(positions), 0)[0].detach()


def expected(made: Encoding, positions: list[int]) -> Tensor:
    table = next(made.parameters()).detach().double()[0].tolist()
    row = {
        "integer": lambda t: formulas_absolute.counted(t, table),
        "normalized": lambda t: formulas_absolute.share_of_window(t, positions[-1], table),
        "binary": lambda t: formulas_absolute.binary_digits(t, table),
    }[made.name]
    return torch.tensor([row(t) for t in positions], dtype=torch.float64)


@pytest.mark.parametrize("name", COUNTING)
@pytest.mark.parametrize("positions", [POSITIONS, list(range(70)), [0], [0, 1], [7], [65535]])
def test_formula(name: str, positions: list[int]) -> None:
    made = counting(name)
    want = expected(made, positions)
    assert ((rows(made, positions).double() - want).abs() / want.abs().clamp_min(1)).max() < 5e-7
    assert (rows(made.double(), positions) - want).abs().max() < 1e-6  # shares are float32


@pytest.mark.parametrize("name", COUNTING)
def test_the_token_is_kept_and_the_first_one_unchanged(name: str) -> None:
    made, x = counting(name), torch.randn(3, 5, WIDTH)
    got = made.embed(x, torch.arange(5), 0)
    assert torch.equal(got[:, 0], x[:, 0])
    torch.testing.assert_close(got - x, rows(made, list(range(5))).expand(3, -1, -1))
    assert made.embed(x, torch.arange(5), 1) is x


@pytest.mark.parametrize("name", COUNTING)
def test_bf16_autocast_gives_the_same_rows(name: str) -> None:
    made = counting(name)
    exact = rows(made, POSITIONS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rows(made, POSITIONS), exact)
    assert len(exact.unique(dim=0)) == len(POSITIONS)


def test_counting_starts_as_large_as_a_token_at_the_end_of_training() -> None:
    for positions, params in ((T, {}), (16 * T, {"position_limit": 16 * T})):
        made = counting("integer", width=4096, **params)
        end = rows(made, [positions])[0]
        assert end.std().item() == pytest.approx(4096**-0.5, rel=0.05)
        assert rows(made, [2 * positions])[0].std() == pytest.approx(2 * end.std().item())


def test_direction_and_bits_start_as_large_as_a_token() -> None:
    assert rows(counting("normalized", width=4096), [5])[0].std().item() == pytest.approx(1 / 64, rel=0.05)
    assert rows(counting("binary", width=4096), [32])[0].std().item() == pytest.approx(1 / 64, rel=0.05)
    assert rows(counting("binary", width=4096), [63])[0].std().item() == pytest.approx(6**0.5 / 64, rel=0.05)


def test_a_normalized_prefix_moves_when_the_text_grows() -> None:
    made = counting("normalized")
    short, long = rows(made, list(range(9))), rows(made, list(range(17)))
    direction = made.get_parameter("direction")[0]
    torch.testing.assert_close(short[-1], direction.detach())
    torch.testing.assert_close(long[-1], direction.detach())
    torch.testing.assert_close(long[:9], short / 2)
    assert not made.prefix_stable


def test_normalized_alone_is_declared_unstable() -> None:
    assert [counting(name).prefix_stable for name in COUNTING] == [True, False, True]


def test_bits_are_refused_on_the_host_past_their_end() -> None:
    made = counting("binary", bits=7)
    assert rows(made, [127]).shape == (1, WIDTH)
    with pytest.raises(ValueError, match="bits=7 end at position 127, not at 128"):
        rows(made, [3, 128])
    with pytest.raises(ValueError, match="not at 999999"):
        rows(made, [0, 1, 2, 999_999])


@pytest.mark.parametrize("bits", [0, -1, 5, 63])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(UserError, match=f"bits={bits}: must be from 6, .* to 62"):
        counting("binary", bits=bits)


def test_bits_must_hold_every_drawn_position() -> None:
    assert isinstance(counting("binary", bits=10, position_limit=1024), Binary)
    with pytest.raises(UserError, match="from 11, for the 1025 positions"):
        counting("binary", bits=10, position_limit=1025)


def test_a_training_window_of_one_token_needs_one_bit() -> None:
    assert isinstance(counting("binary", bits=1, train_length=1), Binary)


@pytest.mark.parametrize(
    "train_length, limit, bits, untrained",
    [(64, None, 16, "6 to 15"), (65, None, 16, "7 to 15"), (64, 1024, 16, "10 to 15"), (64, None, 6, None)],
)
def test_bits_that_training_never_sets_are_told(
    train_length: int, limit: int | None, bits: int, untrained: str | None
) -> None:
    made = counting("binary", train_length=train_length, bits=bits, position_limit=limit)
    last = (limit or train_length) - 1
    made.embed(torch.zeros(1, last + 1, WIDTH), torch.arange(last + 1), 0).sum().backward()
    reached = made.get_parameter("table").grad.any(-1)[0].nonzero()[:, 0]  # type: ignore[union-attr]
    if untrained is None:
        assert made.warnings() == [] and len(reached) == bits
    else:
        assert f"bits {untrained} are never set below position {last + 1}" in made.warnings()[0]
        assert untrained.startswith(f"{len(reached)} ") and int(reached[-1]) == len(reached) - 1


def test_gradients_are_the_positions() -> None:
    made = counting("integer")
    made.embed(torch.zeros(1, 4, WIDTH), torch.tensor([1, 5, 100, 65536]), 0).sum().backward()
    assert torch.equal(made.get_parameter("step").grad, torch.full((1, WIDTH), 65642.0))


def test_decays_no_parameter_and_saves_no_buffer() -> None:
    for name in COUNTING:
        made = counting(name)
        assert not made.decayed and set(made.state_dict()) == dict(made.named_parameters()).keys()


def test_counting_does_not_drown_the_token_at_the_start() -> None:
    shape = ModelShape("start", d_model=64, n_layers=1, n_heads=2, mlp_ratio=2)
    made = counting("integer", width=64)
    model = Decoder(shape, 11, made)
    initialize(model, 0)
    token = model.embedding.weight.norm(dim=-1).mean()
    added = rows(made, [T])[0].norm()
    assert 0.7 < (added / token).item() < 1.4

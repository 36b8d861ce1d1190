import pytest
import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding
from posenc.encodings.learned import Learned

T, WIDTH = 6, 8


def learned(beyond: str, seed: int = 0, **params: object) -> Learned:
    encoding = build_encoding(
        "learned", d_model=WIDTH, n_heads=2, head_dim=4, n_layers=2, train_length=T, beyond=beyond, **params
    )
    assert isinstance(encoding, Learned)
    encoding.table.data.normal_(generator=torch.Generator().manual_seed(5))
    encoding.seed = seed
    return encoding


def added(encoding: Learned, positions: list[int], layer: int = 0) -> Tensor:
    """What is added at these positions: (n, d_model)."""
    return encoding.embed(torch.zeros(1, len(positions), WIDTH), torch.tensor(positions), layer)[0].detach()


@pytest.mark.parametrize("beyond", ["untrained", "clamp", "truncate", "refuse"])
def test_formula_inside_the_training_length(beyond: str) -> None:
    encoding, x = learned(beyond), torch.randn(3, T, WIDTH)
    got = encoding.embed(x, torch.arange(T), 0)
    for b in range(3):
        for t in range(T):
            for c in range(WIDTH):
                assert got[b, t, c].item() == (x[b, t, c] + encoding.table[0, t, c]).item()
    assert encoding.embed(x, torch.arange(T), 1) is x
    assert encoding.beyond == beyond


def test_clamp_repeats_the_last_row() -> None:
    encoding = learned("clamp")
    rows = added(encoding, [0, T - 1, T, 9 * T])
    last = encoding.table[0, T - 1]
    assert torch.equal(rows[1:], last.detach().expand(3, -1))


def test_untrained_rows_depend_on_seed_and_row_alone() -> None:
    at_once = added(learned("untrained"), list(range(3 * T)))
    assert torch.equal(at_once[:T], learned("untrained").table[0])
    grown = learned("untrained")
    added(grown, list(range(T + 2)))  # a shorter window first: the rows must not move
    assert torch.equal(added(grown, list(range(3 * T))), at_once)
    assert torch.equal(added(learned("untrained"), [T + 4]), at_once[[T + 4]])
    assert torch.equal(added(grown, list(range(T + 2))), at_once[: T + 2])
    assert len(at_once.unique(dim=0)) == 3 * T
    other = added(learned("untrained", seed=1), list(range(3 * T)))
    assert (other[T:] != at_once[T:]).all()


def test_untrained_rows_follow_a_seed_that_is_set_later() -> None:
    encoding = learned("untrained", seed=0)
    added(encoding, [T])
    encoding.seed = 1
    assert torch.equal(added(encoding, [T, T + 1]), added(learned("untrained", seed=1), [T, T + 1]))


def test_untrained_rows_are_like_the_trained_ones_at_the_start() -> None:
    rows = added(learned("untrained"), list(range(T, 500)))
    assert rows.std().item() == pytest.approx(WIDTH**-0.5, rel=0.05)
    assert abs(rows.mean().item()) < 0.02


def test_untrained_rows_of_revision_1_have_not_moved() -> None:
    """Numbers of runs hang on them: the generator's name is that of the row alone in the first place."""
    row = torch.randn(WIDTH, generator=generator_for(3, f"encoding.table[{T + 2}]")) * WIDTH**-0.5
    assert torch.equal(added(learned("untrained", seed=3), [T + 2])[0], row)


def test_untrained_rows_of_every_place_differ() -> None:
    encoding = learned("untrained", per_layer=True)
    first, second = added(encoding, list(range(3 * T))), added(encoding, list(range(3 * T)), layer=1)
    assert (first != second).all()
    grown = learned("untrained", per_layer=True)
    added(grown, [2 * T], layer=1)  # the places grow on their own
    assert torch.equal(added(grown, list(range(3 * T)), layer=1), second)
    assert torch.equal(second[:T], encoding.table[1])


def test_rows_are_as_many_as_training_draws_from() -> None:
    encoding = learned("refuse", position_limit=4 * T)
    assert encoding.table.shape == (1, 4 * T, WIDTH)
    assert torch.equal(added(encoding, [3, T, 4 * T - 1]), encoding.table[0, [3, T, 4 * T - 1]])
    with pytest.raises(ValueError, match=f"end at {4 * T},"):
        added(encoding, [4 * T])
    clamped = learned("clamp", position_limit=4 * T)
    assert torch.equal(added(clamped, [T, 9 * T]), clamped.table[0, [T, 4 * T - 1]])


def test_untrained_rows_are_neither_saved_nor_trained() -> None:
    encoding = learned("untrained")
    encoding.embed(torch.zeros(1, 3 * T, WIDTH), torch.arange(3 * T), 0).sum().backward()
    assert list(encoding.state_dict()) == ["table"]
    assert encoding.state_dict()["table"].shape == (1, T, WIDTH)
    assert [name for name, _ in encoding.named_parameters()] == ["table"]
    assert torch.equal(encoding.table.grad, torch.ones(1, T, WIDTH))  # each trained row is read once


@pytest.mark.parametrize("beyond", ["truncate", "refuse"])
def test_refused_on_the_host_before_a_table_is_indexed(beyond: str) -> None:
    with pytest.raises(ValueError, match=f"end at {T}, beyond={beyond} .* position {T}$"):
        added(learned(beyond), list(range(T + 1)))
    assert added(learned(beyond), list(range(T))).shape == (T, WIDTH)


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(UserError, match="untrained") as caught:
        learned("clip")
    assert caught.value.key == "encoding.beyond"

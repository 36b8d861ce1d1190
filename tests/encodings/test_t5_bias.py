import formulas
import pytest
import torch

from posenc.core.errors import UserError
from posenc.encodings import build_encoding
from posenc.encodings.t5 import T5, bucket


def t5(train_length: int = 64, **params: object) -> T5:
    encoding = build_encoding(
        "t5", d_model=16, n_heads=4, head_dim=4, n_layers=2, train_length=train_length, **params
    )
    assert isinstance(encoding, T5)
    return encoding


@pytest.mark.parametrize(
    "buckets, max_distance", [(32, 128), (32, 64), (32, 17), (8, 20), (2, 2), (64, 4096)]
)
def test_buckets_in_whole_numbers(buckets: int, max_distance: int) -> None:
    distances = [*range(600), *(2**n + d for n in range(9, 17) for d in (-1, 0, 1))]
    got = bucket(torch.tensor(distances), buckets, max_distance).tolist()
    assert got == [formulas.t5_bucket(r, buckets, max_distance) for r in distances]


def test_buckets_as_published() -> None:
    found = bucket(torch.arange(1000), 32, 128).tolist()
    assert found[:17] == list(range(17))  # exact below 16
    assert found[112] == 30 and found[113] == 31  # the last border: 16 * 8^(15/16) = 112.4
    assert found[128:] == [31] * 872
    assert sorted(set(found)) == list(range(32))
    assert found == sorted(found)


def test_formula() -> None:
    encoding = t5()
    table = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    encoding.table.data.copy_(table)
    pos = torch.arange(5, 80)
    bias = encoding.bias(pos, pos, 1)
    assert bias.dtype == torch.float32
    for i in range(75):
        for j in range(i + 1):
            assert torch.equal(bias[:, i, j], table[:, formulas.t5_bucket(i - j, 32, 64)])


def test_starts_at_zero() -> None:
    encoding = t5()
    encoding.initialize("table", encoding.table.data, torch.Generator())
    assert (encoding.table == 0).all()


@pytest.mark.parametrize("train_length, reach", [(64, 64), (128, 128), (512, 128), (17, 17), (8, 17)])
def test_max_distance_follows_the_training_length(train_length: int, reach: int) -> None:
    assert t5(train_length).max_distance == reach


def test_max_distance_follows_where_positions_with_gaps_end() -> None:
    assert t5(64, position_limit=1024, distance_limit=1024).max_distance == 128
    assert t5(64, position_limit=1024).max_distance == 64  # positions=offset


def test_unreached_buckets_are_said() -> None:
    assert t5(64).warnings() == []
    assert t5(512).warnings() == []
    [text] = t5(64, max_distance=128).warnings()
    unreached = 31 - formulas.t5_bucket(63, 32, 128)
    assert (
        f"{unreached} of 32 buckets" in text
        and "distance of training, 63" in text
        and "max_distance=128" in text
    )
    assert t5(8).warnings() != []
    drawn = {"position_limit": 1024, "distance_limit": 1024}  # positions=randomized
    assert t5(64, max_distance=128, **drawn).warnings() == []
    assert t5(64, max_distance=128, position_limit=1024).warnings() == [text]  # positions=offset


def test_no_log_of_zero_behind_the_where() -> None:
    with torch.autograd.set_detect_anomaly(True):
        bias = t5().distance_bias(torch.arange(10), 0)
        bias.sum().backward()
    assert bucket(torch.tensor([0]), 32, 128).item() == 0


@pytest.mark.parametrize(
    "params",
    [{"buckets": 31}, {"buckets": 0}, {"max_distance": 16}, {"max_distance": "far"}, {"max_distance": 64.5}],
)
def test_values_out_of_range_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(params))):
        t5(**params)

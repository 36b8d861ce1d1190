"""Normalisers, gates, shifted keys: their formulas by another route, for all encodings that take them."""

import pytest
import torch
from naive_formulas import MOVED, SCORES, Example
from tiny_model import encoding_of
from torch.utils._python_dispatch import TorchDispatchMode

from posenc.core.errors import UserError
from posenc.encodings.attention_options import attention_options, chosen_options
from posenc.encodings.attention_options.entmax import entmax15
from posenc.encodings.attention_options.logn import LogN
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options import build_options
from posenc.encodings.registry import own_encodings
from posenc.model import kernels

CLOSE = 2e-5  # of float32 outputs around 1
NORMALIZERS = ["sink", "off_by_one", "entmax", "asentmax"]
GATES = ["head", "element"]
SHAPE = Shape(d_model=16, n_heads=2, head_dim=8, n_layers=2, train_length=16)
CHOICES = [
    *({"normalizer": name} for name in NORMALIZERS),
    *({"gate": name} for name in GATES),
    {"output_norm": True},
    {"key_offset": True},
]
IN_EVERY_RUN = {"nope", "rope", "alibi", "shaw", "fox", "cope", "path", "rnope_swa", "hope"}
NOT_BY_THE_FORMULA = {
    "tape": "its positions are mixed by the weights of the layers before",
    "pattern": "its layers take options each in their own way",
}


def fits(name, choice):
    """Tell whether the encoding takes the option."""
    encoding = encoding_of(name, 16)
    return all(cls.misfit(encoding) is None for cls, _ in chosen_options(choice))


def cases():
    made = []
    names = [name for name in SCORES if name not in NOT_BY_THE_FORMULA]
    for choice in CHOICES:
        for name in names:
            if fits(name, choice):
                marks = [] if name in IN_EVERY_RUN else [pytest.mark.slow]
                ((key, value),) = choice.items()
                made.append(pytest.param(name, choice, marks=marks, id=f"{name}-{key}-{value}"))
    return made


def apart(a, b):
    """The largest difference, as a share of a row's largest number where that is above 1."""
    return ((a.double() - b) / b.abs().amax(-1, keepdim=True).clamp_min(1)).abs().max().item()


@pytest.mark.parametrize(("name", "choice"), cases())
@torch.no_grad()
def test_attention_with_an_option_is_the_formula(name, choice):
    example = Example(name, heads=2, attention=choice)
    expected = example.naive_attention()
    assert apart(example.attention(), expected) < CLOSE
    assert apart(example.attention(wanted=4), expected[:, -4:]) < CLOSE
    with kernels.changed_limits(max_scores=1):  # queries one by one
        assert apart(example.attention(), expected) < CLOSE


@pytest.mark.parametrize("choice", CHOICES[:-1], ids=str)
@torch.no_grad()
def test_an_option_sees_a_window(choice):
    example = Example("alibi", heads=2, attention_window=5, attention=choice)
    assert apart(example.attention(), example.naive_attention()) < CLOSE


@pytest.mark.parametrize(
    ("name", "params"),
    [
        pytest.param("rope", {"fraction": 0.5}, id="a half"),
        pytest.param("rope", {"fraction": 0.75}, id="three quarters"),
        pytest.param("scale_invariant", {"fraction": 0.5}, id="another encoding"),
    ],
)
@torch.no_grad()
def test_keys_are_shifted_in_the_part_that_is_not_rotated(name, params):
    example = Example(name, heads=2, attention={"key_offset": True}, **params)
    assert apart(example.attention(), example.naive_attention()) < CLOSE


@pytest.mark.parametrize(
    ("layout", "numbers"), [("interleaved", [4, 5, 6, 7]), ("half", [2, 3, 6, 7])], ids=str
)
def test_pairs_that_p_rope_drops_are_not_rotated(layout, numbers):
    encoding = encoding_of("rope", 16, layout=layout, drop_low=0.5)
    assert encoding.unrotated_numbers(0) == numbers


@pytest.mark.parametrize("name", own_encodings())
def test_unrotated_numbers_are_those_that_a_rotation_leaves(name):
    """Compare them with what `rotate` does at a far position."""
    encoding = encoding_of(name, 16)
    if name in ("repo", "carope", "selective_rope"):  # rotate by another hook, by angles of the text
        assert encoding.unrotated_numbers(0) == []
        return
    if "rotate" not in encoding.hooks:
        assert encoding.unrotated_numbers(0) == list(range(8))
        return
    if "prepare" in encoding.hooks or name not in MOVED:
        return  # angles of the text, or turned as a whole
    for layer in range(2):
        q = torch.randn(1, 2, 3, 8, generator=torch.Generator().manual_seed(0))
        pos = torch.tensor([5, 100, 3001])
        rotated, _ = encoding.rotate(q, q, pos, pos, layer)
        is_same = (rotated == q).all(dim=(0, 1, 2))
        assert is_same.nonzero().flatten().tolist() == encoding.unrotated_numbers(layer)


# --- What is refused
class OwnWeights(Encoding):
    name = "own_weights"

    def weights(self, s, allowed, layer):
        return super().weights(s, allowed, layer)


class SinkAlone(Encoding):
    name = "sink_alone"

    def sink(self, layer):
        return torch.zeros(self.shape.n_heads)


class HookAtRunTime(Encoding):
    """Tells of a sink that its class does not have, as a composite does."""

    name = "hook_at_run_time"
    hooks = frozenset({"sink"})


def test_a_sink_is_refused_without_the_weights_that_it_makes():
    with pytest.raises(ValueError, match="`sink` without `weights`"):
        SinkAlone(SHAPE)


def refusal(encoding, **attention):
    with pytest.raises(UserError) as caught:
        build_options(SHAPE, encoding, positions={"name": "contiguous"}, attention=attention)
    return caught.value.text()


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: encoding_of("stick_breaking", 16),
        lambda: OwnWeights(SHAPE),
        lambda: HookAtRunTime(SHAPE),
    ],
)
def test_a_normalizer_is_refused_beside_weights_of_an_encodings_own(make, normalizer):
    message = refusal(make(), normalizer=normalizer)
    assert f"attention.normalizer={normalizer}" in message
    assert "no softmax to replace" in message


def test_keys_of_a_whole_rotated_head_are_not_shifted():
    message = refusal(encoding_of("rope", 16), key_offset=True)
    assert "attention.key_offset=true" in message
    assert "encoding.fraction=0.5" in message


def test_the_key_offset_is_refused_where_any_part_rotates_the_whole_head():
    encoding = encoding_of("sum", 16, parts=["carope", "alibi"])
    assert "it rotates the whole head" in refusal(encoding, key_offset=True)


def test_asentmax_is_refused_where_scores_do_not_grow_with_the_query():
    for name, parts in (("pope", {}), ("pattern", {"parts": ["nope", "pope"], "windows": [], "scales": []})):
        message = refusal(encoding_of(name, 16, **parts), normalizer="asentmax")
        assert "its scores do not grow by the factor" in message


def test_asentmax_is_refused_beside_another_scale():
    message = refusal(encoding_of("rope", 16), normalizer="asentmax", scale="logn")
    assert "attention.normalizer=asentmax" in message
    assert "attention.scale=none" in message


def without_options():
    return {cls.key: cls.off for cls in attention_options()}


def test_without_options_nothing_is_chosen():
    assert chosen_options(without_options()) == []


def test_every_option_has_a_value_that_switches_it_off():
    off = without_options()
    for cls in attention_options():
        assert off[cls.key] != cls.choice


# --- Counted keys
class LargestTensor(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that is made inside."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def count_keys(tokens, queries, window):
    """Return n_i of the last queries, as asentmax counts them, and the size of the largest tensor."""
    options = build_options(
        SHAPE,
        encoding_of("rope", 16),
        positions={"name": "contiguous"},
        attention={"normalizer": "asentmax", "window": window},
    )
    pos = torch.arange(tokens)
    with LargestTensor() as largest:
        counts = options[-1].visible_keys(pos[-queries:], pos, 0)
    return counts, largest.numbers


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("queries", [4096, 3000])
def test_each_query_counts_the_keys_that_it_sees(queries, window):
    counts, _ = count_keys(4096, queries, window)
    expected = torch.arange(1.0, 4097).clamp_max(window or 4096)
    assert torch.equal(counts, expected[None, -queries:])


class HidesItsOwnKey(Encoding):
    """Lets a query see the keys before it alone."""

    def visible(self, q_pos, k_pos, layer):
        return (k_pos[None] < q_pos[:, None])[None]


def test_a_query_counts_its_own_key_whatever_a_mask_says():
    """The attention shows it, whatever the mask says."""
    counting = LogN(SHAPE, counted=[HidesItsOwnKey(SHAPE)])
    pos = torch.arange(4)
    assert counting.visible_keys(pos, pos, 0).tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(("window", "most"), [(None, 4096), (100, 4096**2 / 4)])
def test_counted_keys_do_not_need_all_pairs_of_a_long_window(window, most):
    _, numbers = count_keys(4096, 4096, window)
    assert numbers <= most


# --- Entmax
def rows(dtype):
    drawn = torch.randn(6, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scales = torch.tensor([0.0, 1e-3, 1.0, 3.0, 30.0, 1e4])[:, None]
    return (drawn * scales).to(dtype)


def test_entmax_weights_sum_to_one():
    assert (entmax15(rows(torch.float32)).sum(-1) - 1).abs().max() < 2e-6


def entmax_by_sorting(scores):
    """Return the weights (B, S) in float64: the threshold that fits the largest k scores, for the right k."""
    scores = scores.double()
    half = (scores - scores.amax(-1, keepdim=True)) / 2
    largest = half.sort(-1, descending=True).values
    k = torch.arange(1, half.shape[-1] + 1)
    mean = largest.cumsum(-1) / k
    sum_of_squares = k * (largest.square().cumsum(-1) / k - mean.square())
    thresholds = mean - ((1 - sum_of_squares) / k).clamp_min(0).sqrt()
    in_support = (thresholds <= largest).sum(-1, keepdim=True)
    return (half - thresholds.gather(-1, in_support - 1)).relu().square()


def far_from_the_start(keys):
    """Return a row whose threshold, -1/2, is just above all but four of its halved scores."""
    scores = torch.full((1, keys), -1.00001)
    scores[:, :4] = 0
    return scores


@pytest.mark.parametrize("keys", [512, 8192, 131_072])
def test_entmax_takes_as_many_steps_as_the_hardest_row_needs(keys):
    scores = far_from_the_start(keys)
    assert (entmax15(scores).double() - entmax_by_sorting(scores)).abs().max() < 1e-7


@pytest.mark.parametrize("offset", [-1000.0, 100.0, 1000.0])
def test_entmax_of_scores_far_from_zero(offset):
    drawn = torch.randn(4, 8192, generator=torch.Generator().manual_seed(2))
    scores = drawn * torch.tensor([1e-3, 1.0, 3.0, 30.0])[:, None] + offset
    weights = entmax15(scores).double()
    assert (weights - entmax_by_sorting(scores)).abs().max() < 1e-6
    assert (weights.sum(-1) - 1).abs().max() < 5e-6


def test_entmax_of_equal_scores_is_uniform():
    for keys in (1, 2, 3, 100, 70_000):
        weights = entmax15(torch.full((1, keys), 5.0))
        assert torch.allclose(weights, torch.full((1, keys), 1 / keys), rtol=1e-4, atol=0)


def test_entmax_gives_low_scores_nothing():
    weights = entmax15(torch.tensor([3.0, 2.5, 0.9, -float("inf")]))
    assert weights[2:].tolist() == [0, 0]
    assert (weights[:2] > 0).all()


def test_entmax_in_float32_is_that_of_float64():
    difference = entmax15(rows(torch.float32)).double() - entmax15(rows(torch.float64))
    assert difference.abs().max() < 1e-5


def test_entmax_has_the_gradient_of_its_weights():
    scores = torch.randn(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(entmax15, (scores.requires_grad_(),))

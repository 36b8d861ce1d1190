"""Windows, and scales that know the length: options of any encoding."""

import math
from collections.abc import Callable
from typing import Any

import formulas
import pytest
import torch
from decoding import CLOSE, SHAPE, VOCABULARY, Paper, T, apart, encoding, exactly, logits, text
from formulas_rotary import rope
from naive import Naive, Place
from optioned import DENSE, OFFSET, RANDOMIZED, options, with_options
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import Shape
from posenc.encodings.options import LogN, Window
from posenc.model import kernels
from posenc.model.decoder import Decoder, ModelShape, count_parameters, initialize
from posenc.training.optimizer import Optimization, build_optimizer

N = 2 * T + 3  # tokens, past the training length
GAPS = [0, 1, 4, 5, 6, 20, 21, 90, 100, 101, 102, 120]


class Alibi(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        return s - formulas.alibi_slope(at.head + 1, SHAPE.n_heads) * (at.pos[i] - at.pos[j])


def nope(wide: Decoder) -> Naive:
    return Naive(wide.encoding)


def alibi(wide: Decoder) -> Naive:
    return Alibi(wide.encoding)


def rotary(wide: Decoder) -> Naive:
    return Paper(wide, lambda q, k, i, j, at: rope(q, k, i, j))


def rnope_swa(wide: Decoder) -> Naive:
    """Layer 0 rotary with a window of T/2, layer 1 free."""
    plain = Paper(wide, lambda q, k, i, j, at: rope(q, k, i, j) if at.layer == 0 else rope(q, k, 0, 0))
    plain.visible = lambda i, j, layer: layer == 1 or i - j < T // 2
    return plain


PLAIN: dict[str, Callable[[Decoder], Naive]] = {
    "nope": nope,
    "alibi": alibi,
    "rope": rotary,
    "rnope_swa": rnope_swa,
}


TAKING = {"nope", "alibi", "rope"}  # a window; the other has its own


def windowed(plain: Callable[[Decoder], Naive], window: int | None) -> Callable[[Decoder], Naive]:
    def build(wide: Decoder) -> Naive:
        made = plain(wide)
        before = made.visible
        if window is not None:
            made.visible = lambda i, j, layer: before(i, j, layer) and i - j < window
        return made

    return build


def scaled(plain: Callable[[Decoder], Naive], scale: str) -> Callable[[Decoder], Naive]:
    """Every visible score times its factor; how many there are is how many the softmax gets."""

    def build(wide: Decoder) -> Naive:
        made = plain(wide)

        def weights(scores: list[Tensor], at: Place) -> list[Tensor]:
            slope = 1 / math.log(T)
            if scale == "ssmax":
                slope = wide.options[-1].s[at.layer, at.head].item()
            powers = [(s * slope * math.log(len(scores))).exp() for s in scores]
            return [power / sum(powers) for power in powers]

        if scale != "none":
            made.weights = weights
        return made

    return build


@pytest.mark.parametrize("most", [1 << 20, 1])
@pytest.mark.parametrize("scale", ["none", "logn", "ssmax"])
@pytest.mark.parametrize(
    "name, window", [(n, w) for n in PLAIN for w in (None, 1, 5) if w is None or n in TAKING]
)
def test_the_whole_decoder(
    name: str, window: int | None, scale: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    model, tokens = with_options(name, window=window, scale=scale), text(N)
    want = exactly(model, tokens, scaled(windowed(PLAIN[name], window), scale))
    assert apart(logits(model, tokens), want) < CLOSE
    assert apart(logits(model, tokens, wanted=2), want[-2:]) < CLOSE


@pytest.mark.parametrize("scale", ["none", "logn"])
@pytest.mark.parametrize(
    "name, window", [("alibi", None), ("rope", None), ("rnope_swa", None), ("alibi", 7), ("rope", 7)]
)
def test_drawn_positions_through_the_decoder(name: str, window: int | None, scale: str) -> None:
    """A window is a distance between positions: fewer keys where these have gaps, and n counts keys."""
    model = with_options(name, positions=RANDOMIZED, window=window, scale=scale)
    tokens = text(len(GAPS))
    want = exactly(model, tokens, scaled(windowed(PLAIN[name], window), scale), GAPS)
    assert apart(logits(model, tokens, GAPS), want) < CLOSE


@pytest.mark.parametrize("chosen", [{"window": 5}, {"scale": "logn"}, {"scale": "ssmax"}])
@pytest.mark.parametrize("name", ["nope", "alibi", "rope", "t5", "cope", "shaw"])
def test_options_change_the_numbers(name: str, chosen: dict[str, Any]) -> None:
    got = logits(with_options(name, **chosen), text(N))
    assert apart(got, logits(with_options(name), text(N))) > 1e-3


@pytest.mark.parametrize("window", [N, N + 1, 10_000])
@pytest.mark.parametrize("name", ["nope", "alibi", "rope", "fire", "cope", "shaw"])
def test_a_window_over_all_keys_is_none(name: str, window: int) -> None:
    plain = logits(with_options(name), text(N))
    assert apart(logits(with_options(name, window=window), text(N)), plain) < 1e-6
    assert apart(logits(with_options(name, window=N - 1), text(N))[-1], plain[-1]) > 1e-6


def test_a_window_holds_the_token_itself_and_those_before() -> None:
    seen = Window(encoding("nope").shape, window=3).visible(torch.arange(6), torch.arange(6), 0).tril()
    assert seen.sum(-1).tolist() == [1, 2, 3, 3, 3, 3]
    alone = with_options("nope", window=1)
    tokens = text(N)
    assert torch.allclose(logits(alone, tokens)[-1], logits(alone, tokens[-1:])[-1], atol=1e-6)


CHOICES: list[dict[str, Any]] = [
    {"window": 5},
    {"scale": "logn"},
    {"scale": "ssmax"},
    {"window": 5, "scale": "logn"},
    {"window": 5, "scale": "ssmax"},
    {"positions": DENSE, "scale": "logn"},
    {"positions": OFFSET, "window": 5},
]


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_a_longer_text_leaves_its_prefix_alone(name: str, chosen: dict[str, Any]) -> None:
    _is_prefix_stable(with_options(name, **chosen))


@pytest.mark.parametrize("scale", ["none", "logn", "ssmax"])
def test_windows_by_layer_leave_the_prefix_alone(scale: str) -> None:
    _is_prefix_stable(with_options("rnope_swa", scale=scale))


def _is_prefix_stable(model: Decoder) -> None:
    tokens = text(200)
    whole = logits(model, tokens)
    assert model.effective_encoding.prefix_stable
    for n in (1, 2, T, 50):
        assert apart(whole[:n], logits(model, tokens[:n])) < CLOSE
    changed = [*tokens[:50], *((token + 1) % VOCABULARY for token in tokens[50:])]
    after = logits(model, changed)
    assert torch.equal(after[:50], whole[:50]) and apart(after[50:], whole[50:]) > 1e-3


def test_logn_is_one_at_the_training_length_and_nothing_at_one_key() -> None:
    own = encoding("rope")
    scale = LogN(own.shape, counted=(own,))
    factor = scale.factor(torch.arange(64), torch.arange(64), 0)[0].tolist()
    assert factor == pytest.approx([math.log(i + 1) / math.log(T) for i in range(64)], abs=1e-6)
    assert factor[0] == 0 and factor[T - 1] == pytest.approx(1) and factor[63] == pytest.approx(2)
    last = scale.factor(torch.arange(61, 64), torch.arange(64), 0)[0].tolist()
    assert last == pytest.approx(factor[-3:])


def test_logn_counts_visible_keys() -> None:
    own = encoding("rnope_swa")
    by_layer = LogN(own.shape, counted=(own,))
    pos = torch.arange(20)
    assert by_layer.log_visible(pos, pos, 0).exp().tolist() == pytest.approx(
        [min(i + 1, T // 2) for i in range(20)]
    )
    assert by_layer.log_visible(pos, pos, 1).exp().tolist() == pytest.approx([i + 1 for i in range(20)])
    gaps = LogN(own.shape, counted=(encoding("rope"), Window(own.shape, window=3)))
    drawn = torch.tensor(GAPS)
    want = [sum(0 <= i - j < 3 for j in GAPS) for i in GAPS]
    assert gaps.log_visible(drawn, drawn, 0).exp().tolist() == pytest.approx(want)
    two = LogN(own.shape, counted=(own, Window(own.shape, window=3)))
    assert two.log_visible(pos, pos, 1).exp().max().item() == pytest.approx(3)
    assert two.log_visible(pos, pos, 0).exp().max().item() == pytest.approx(3)


def test_a_mask_that_hides_the_token_itself_leaves_one_key() -> None:
    class Blind(Window):
        def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
            return torch.zeros(len(q_pos), len(k_pos), dtype=torch.bool)

    shape = encoding("nope").shape
    scale = LogN(shape, counted=(Blind(shape, window=1),))
    assert not scale.log_visible(torch.arange(5), torch.arange(5), 0).any()  # log 1: the attention adds it


def test_the_scale_meets_the_bias_too() -> None:
    """softmax of f (z + b), not of f z + b: at one key fewer than T, and past T, the two differ."""
    model, tokens = with_options("alibi", scale="logn"), text(N)

    class Late(Alibi):
        def weights(self, scores: list[Tensor], at: Place) -> list[Tensor]:
            n = len(scores)
            slope = formulas.alibi_slope(at.head + 1, SHAPE.n_heads)
            bias = [-slope * (n - 1 - j) for j in range(n)]
            factor = math.log(n) / math.log(T)
            powers = [((s - b) * factor + b).exp() for s, b in zip(scores, bias, strict=True)]
            return [power / sum(powers) for power in powers]

    late = exactly(model, tokens, lambda wide: Late(wide.encoding))
    assert apart(logits(model, tokens), late) > 1e-3


def test_ssmax_starts_as_logn_and_learns_a_factor_for_each_layer_and_head() -> None:
    own = encoding("rope")
    model = Decoder(SHAPE, VOCABULARY, own, options(own, scale="ssmax"))
    initialize(model, 3)
    fixed = Decoder(SHAPE, VOCABULARY, own, options(own, scale="logn"))
    initialize(fixed, 3)
    assert apart(logits(model, text(N)), logits(fixed, text(N))) < 1e-6
    [(name, s)] = model.options.named_parameters()
    assert name == "0.s" and s.shape == (SHAPE.n_layers, SHAPE.n_heads)
    assert torch.allclose(s, torch.tensor(1 / math.log(T)))
    assert count_parameters(model)["options"] == s.numel() and count_parameters(fixed)["options"] == 0
    assert [key for key in model.state_dict() if "encoding" in key or "options" in key] == ["options.0.s"]
    model.train()
    model(torch.tensor([text(T)]), torch.arange(T)).logsumexp(-1).square().sum().backward()
    assert s.grad is not None and (s.grad != 0).all() and s.grad.isfinite().all()


def test_ssmax_is_not_decayed() -> None:
    model = with_options("rope", scale="ssmax")
    settings = Optimization(1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.0, 0.0)
    [s] = model.options.parameters()
    for group in build_optimizer(model, settings).param_groups:
        assert (s in set(group["params"])) == (group["weight_decay"] == 0)


@pytest.mark.parametrize("scale", ["logn", "ssmax"])
@torch.no_grad()
def test_scores_stay_float32_under_autocast(scale: str) -> None:
    option = with_options("rope", window=300, scale=scale).options[-1]
    s, pos = torch.randn(1, SHAPE.n_heads, 300, 300), torch.arange(300)
    exact = option.scores(s, s, s, pos, pos, None, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = option.scores(s, s, s, pos, pos, None, 1)
    assert got.dtype == torch.float32 and torch.equal(got, exact)


@pytest.mark.parametrize("most", [1 << 20, 1])
@pytest.mark.parametrize("name", ["rope", "rnope_swa", "alibi"])
def test_gradients_are_finite(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    model = with_options(name, positions=RANDOMIZED, scale="ssmax").train()
    pos = model.positions(T, generator_for(0, "test"))
    model(torch.tensor([text(T)]), pos).logsumexp(-1).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key


def test_a_decoder_of_one_layer_and_head() -> None:
    shape = ModelShape("one", 8, 1, 1, 2)
    own = encoding("nope", layers=1)
    own.shape = Shape(8, 1, 8, 1, T)
    model = Decoder(shape, VOCABULARY, own, options(own, window=1, scale="ssmax"))
    initialize(model, 0)
    assert logits(model, text(1)).isfinite().all() and logits(model, text(N)).isfinite().all()

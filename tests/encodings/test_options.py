"""Windows, scales that know the length, and where positions come from: options of any encoding."""

import math
from collections.abc import Callable
from typing import Any

import formulas
import pytest
import torch
from decoding import CLOSE, SHAPE, VOCABULARY, Paper, T, apart, encoding, exactly, logits, model_of, text
from formulas_rotary import rope
from naive import Naive, Place
from torch import Tensor

from posenc.encodings import list_encodings
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options import build_options, check_positions, position_limit
from posenc.encodings.options.positions import Offset, Randomized
from posenc.encodings.options.scale import LogN, SSMax
from posenc.encodings.options.window import Window
from posenc.errors import UserError
from posenc.model import kernels
from posenc.model.decoder import Decoder, ModelShape, count_parameters
from posenc.model.init import initialize
from posenc.seeds import generator_for
from posenc.training.optimizer import Optimization, build_optimizer

CONTIGUOUS = {"name": "contiguous"}
RANDOMIZED = {"name": "randomized", "max": None, "dense": False}
DENSE = {**RANDOMIZED, "dense": True}
OFFSET = {"name": "offset", "max": None}
N = 2 * T + 3  # tokens, past the training length
GAPS = [0, 1, 4, 5, 6, 20, 21, 90, 100, 101, 102, 120]


def options(
    own: Encoding, positions: dict[str, Any] = CONTIGUOUS, window: int | None = None, scale: Any = "none"
) -> list[Encoding]:
    return build_options(own.shape, own, positions=positions, window=window, scale=scale)


def with_options(name: str, params: dict[str, Any] | None = None, **chosen: Any) -> Decoder:
    """`ssmax` gets other factors than it starts with, each head its own."""
    limit = position_limit(chosen.get("positions", CONTIGUOUS), T)
    own = encoding(name, limit=limit, **(params or {}))
    model = model_of(own, *options(own, **chosen))
    for parameter in model.options.parameters():
        torch.nn.init.uniform_(parameter, 0.1, 2, generator=torch.Generator().manual_seed(2))
    return model


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
    assert model.acting.prefix_stable
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


# Where positions come from


def drawn(training: bool, seed: int, n: int = T, **params: Any) -> Tensor:
    option = Randomized(encoding("rope").shape, **{"max": None, "dense": False, **params})
    return option.positions(n, training, generator_for(seed, "test"))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("n, most", [(T, None), (16 * T, None), (T, T), (1, 1000), (40, 41)])
def test_randomized_positions_are_a_sorted_subset(training: bool, n: int, most: int | None) -> None:
    for seed in range(20):
        pos = drawn(training, seed, n, max=most)
        assert pos.dtype == torch.int64 and pos.shape == (n,)
        assert (pos.diff() > 0).all()  # sorted, and none twice
        assert int(pos[0]) >= 0 and int(pos[-1]) < (most or 16 * T)


def test_randomized_positions_depend_on_the_generator_alone() -> None:
    torch.manual_seed(0)
    first = drawn(True, 7)
    torch.manual_seed(1)
    assert torch.equal(first, drawn(True, 7)) and torch.equal(first, drawn(False, 7))
    assert not torch.equal(first, drawn(True, 8))


def test_every_position_is_drawn_as_often() -> None:
    option, counts = Randomized(Shape(16, 2, 8, 2, 4), max=16, dense=False), torch.zeros(16)
    for seed in range(2000):
        counts[option.positions(4, True, generator_for(seed, "test"))] += 1
    assert counts.min() > 400 and counts.max() < 600  # 500 expected, of deviation 19


def test_dense_draws_in_training_alone() -> None:
    assert torch.equal(drawn(False, 3, dense=True), torch.arange(T))
    assert torch.equal(drawn(True, 3, dense=True), drawn(True, 3))
    assert torch.equal(drawn(False, 3, 100 * T, dense=True), torch.arange(100 * T))  # no limit there
    shape = encoding("rope").shape
    assert Randomized(shape, max=None, dense=True).prefix_stable
    assert not Randomized(shape, max=None, dense=False).prefix_stable


def test_more_positions_than_there_are_cannot_be_drawn() -> None:
    assert torch.equal(drawn(False, 0, 16 * T), torch.arange(16 * T))
    with pytest.raises(ValueError, match=r"129 positions .* positions\.max=128"):
        drawn(False, 0, 16 * T + 1)


def test_offset_starts_anywhere_in_training_and_at_zero_in_evaluation() -> None:
    option = Offset(Shape(16, 2, 8, 2, 4), max=9)
    starts = []
    for seed in range(200):
        pos = option.positions(4, True, generator_for(seed, "test"))
        assert pos.dtype == torch.int64 and (pos.diff() == 1).all() and len(pos) == 4
        starts.append(int(pos[0]))
        assert torch.equal(option.positions(40, False, generator_for(seed, "test")), torch.arange(40))
    assert set(starts) == set(range(6))  # 5 + 3 is the last position below 9
    assert torch.equal(
        option.positions(4, True, generator_for(1, "test")),
        option.positions(4, True, generator_for(1, "test")),
    )
    assert int(Offset(option.shape, max=4).positions(4, True, torch.Generator())[0]) == 0


def test_the_model_draws_by_mode() -> None:
    model = with_options("rope", positions=OFFSET)
    generator = generator_for(5, "test")
    assert int(model.train().positions(T, generator)[0]) > 0
    assert torch.equal(model.eval().positions(T, generator), torch.arange(T))
    model = with_options("rope", positions=RANDOMIZED)
    assert not torch.equal(model.eval().positions(T, generator), torch.arange(T))
    assert torch.equal(with_options("rope").train().positions(T, generator), torch.arange(T))


@pytest.mark.parametrize("positions, limit", [(CONTIGUOUS, None), (RANDOMIZED, 16 * T), (OFFSET, 8 * T)])
def test_the_encoding_is_told_where_training_positions_end(positions: dict[str, Any], limit: int) -> None:
    assert position_limit(positions, T) == limit
    if limit:
        assert position_limit({**positions, "max": 99}, T) == 99
        [option] = options(encoding("rope"), positions=positions)
        assert option.limit == limit
        assert option.ends_at is None  # other encodings than tables go on from there


# What is refused, and how it says so


def test_nothing_asked_for_is_no_option() -> None:
    own = encoding("rope")
    assert options(own) == []
    assert [type(option) for option in options(own, RANDOMIZED, 5, "ssmax")] == [Randomized, Window, SSMax]
    assert model_of(own).acting is own


def ways() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("positions", {"positions": RANDOMIZED}),
        ("positions", {"positions": OFFSET}),
        ("attention.window", {"window": 5}),
        ("attention.scale", {"scale": "logn"}),
        ("attention.scale", {"scale": "ssmax"}),
    ]


@pytest.mark.parametrize("option, chosen", ways(), ids=str)
@pytest.mark.parametrize("name", list_encodings())
def test_taken_or_refused_by_name(name: str, option: str, chosen: dict[str, Any]) -> None:
    own = encoding(name, limit=position_limit(chosen.get("positions", CONTIGUOUS), T))
    if option in own.refuses or (option == "positions" and not own.uses_positions):
        with pytest.raises(UserError) as caught:
            options(own, **chosen)
        said = caught.value.text()
        assert option in said and f"encoding={name}" in said
        assert own.refuses.get(option, "it reads no position") in said
    else:
        model = model_of(own, *options(own, **chosen))
        pos = model.train().positions(T, generator_for(0, "test"))
        assert model(torch.tensor([text(T)]), pos).isfinite().all()


def test_who_refuses_what() -> None:
    refusing = {
        option: {name for name in list_encodings() if option in encoding(name).refuses}
        for option in ("attention.window", "attention.scale", "positions")
    }
    assert refusing["attention.window"] >= {"rnope_swa"} and refusing["attention.scale"] >= {"stick_breaking"}
    known = {"attention.window", "attention.scale", "positions"}
    assert all(set(encoding(name).refuses) <= known for name in list_encodings())


@pytest.mark.parametrize(
    "chosen, says",
    [
        ({"window": 0}, "window=0"),
        ({"window": -3}, "window=-3"),
        ({"positions": {**RANDOMIZED, "max": T - 1}}, rf"positions\.max={T - 1}.*context_length={T}"),
        ({"positions": {**OFFSET, "max": 1}}, r"positions\.max=1"),
    ],
)
def test_values_out_of_range(chosen: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        options(encoding("rope"), **chosen)


@pytest.mark.parametrize("scale", ["logn", "ssmax"])
def test_a_scale_needs_a_length_whose_logarithm_is_not_zero(scale: str) -> None:
    with pytest.raises(UserError, match="context_length=1"):
        options(encoding("rope", train_length=1), scale=scale)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"name": "random"}, "no such positions"),
        ({"name": "randomized", "max": "many", "dense": False}, r"positions\.max"),
        ({"name": "randomized", "max": None, "dense": 3}, r"positions\.dense"),
        ({"name": "offset", "max": None, "dense": True}, r"positions\.dense"),
        ({"name": "contiguous", "max": 5}, r"positions\.max"),
    ],
)
def test_settings_of_positions_that_are_wrong(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_positions(settings)


@pytest.mark.parametrize("settings", [CONTIGUOUS, RANDOMIZED, DENSE, OFFSET, {**OFFSET, "max": 99}])
def test_settings_of_positions_that_are_right(settings: dict[str, Any]) -> None:
    assert check_positions(settings) == settings


def test_a_decoder_of_one_layer_and_head() -> None:
    shape = ModelShape("one", 8, 1, 1, 2)
    own = encoding("nope", layers=1)
    own.shape = Shape(8, 1, 8, 1, T)
    model = Decoder(shape, VOCABULARY, own, options(own, window=1, scale="ssmax"))
    initialize(model, 0)
    assert logits(model, text(1)).isfinite().all() and logits(model, text(N)).isfinite().all()

"""Latent attention: against loops in float64, decoded from its cache alone, and through `posenc train`."""

from __future__ import annotations

import copy
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_model
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1] / "encodings"))
import formulas

from posenc.corpus import TokenStore
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.jobs.build import build_decoder, build_model
from posenc.model import kernels
from posenc.model.choice import AttentionChoice
from posenc.model.decoder import Decoder, ModelShape
from posenc.model.init import initialize
from posenc.model.mla import LatentAttention

SHAPE = ModelShape("small", d_model=24, n_layers=2, n_heads=3, mlp_ratio=2)
T, VOCABULARY, HEADS, WIDTH = 8, 13, 3, 8
RANKS = {"kv_rank": 10, "q_rank": 14, "rope_dim": 4}
DRAWN = [0, 1, 5, 6, 30, 31, 90, 127]
CONTIGUOUS = {"name": "contiguous"}
RANDOMIZED = {"name": "randomized", "max": None, "dense": False}

Turn = Callable[[Tensor, int], Tensor]  # a vector and its position


def model_of(
    encoding: str = "rope",
    shape: ModelShape = SHAPE,
    *,
    window: int | None = None,
    scale: str = "none",
    positions: dict[str, Any] = CONTIGUOUS,
    **ranks: int | None,
) -> Decoder:
    """Of the settings that a run has; the norms' weights are drawn, since ones would hide them."""
    rope = {"base": 100.0, "layout": "half", "fraction": 1.0, "drop_low": 0.0}
    settings = {
        "attention": {"name": "mla", **RANKS, **ranks, "window": window, "scale": scale},
        "encoding": {"name": encoding, **(rope if encoding == "rope" else {})},
        "positions": positions,
        "context_length": T,
        "plugins": [],
        "seed": 1,
    }
    model = build_model(settings, shape, VOCABULARY)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def attention_of(model: Decoder, layer: int = 0) -> LatentAttention:
    found = model.blocks[layer].attention
    assert isinstance(found, LatentAttention)
    return found


def inputs(n: int = T) -> Tensor:
    """Inputs of a layer, of float32's numbers: (n, d) float64."""
    return torch.randn(n, SHAPE.d_model, generator=torch.Generator().manual_seed(3)).double()


def turn(encoding: str) -> Turn:
    if encoding == "nope":
        return lambda x, t: x
    return lambda x, t: torch.tensor(formulas.rope(x.tolist(), t, 100.0, "half", 1.0, 0.0)).double()


def apart(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).abs().max().item()


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean() + torch.finfo(torch.float32).eps).sqrt() * weight.double()


class Exactly:
    """The paper's formulas, a token and a head at a time, in float64; matrices by their own names."""

    def __init__(self, attention: LatentAttention, turn: Turn) -> None:
        a, self.turn = attention, turn
        self.width, self.heads, self.rope_dim = a.head_dim, a.n_heads, a.rope_dim
        weights = {name: p.detach().double() for name, p in a.named_parameters()}
        self.w_dq, self.w_q, self.w_o = (weights[f"{name}.weight"] for name in ("q_down", "q_up", "out"))
        self.w_dkv, self.w_kr = weights["kv_down.weight"].split((a.kv_rank, a.rope_dim))
        self.w_uk, self.w_uv = (w.split(a.head_dim) for w in weights["kv_up.weight"].chunk(2))  # by head
        self.q_norm, self.kv_norm = weights["q_norm.weight"], weights["kv_norm.weight"]
        self.root = math.sqrt(self.width + self.rope_dim)

    def query(self, x: Tensor, h: int, t: int) -> tuple[Tensor, Tensor]:
        """qC and the turned qR of a head."""
        latent = norm(self.w_dq @ x, self.q_norm)
        both = self.w_q.split(self.width + self.rope_dim)[h] @ latent
        content, rotary = both.split((self.width, self.rope_dim))
        return content, self.turn(rotary, t)

    def cached(self, x: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """All that decoding keeps of a token: its latent and the turned kR."""
        return norm(self.w_dkv @ x, self.kv_norm), self.turn(self.w_kr @ x, t)

    def explicit(
        self,
        x: Tensor,
        pos: list[int],
        window: int | None = None,
        factor: Callable[[int], float] | None = None,
    ) -> Tensor:
        """(T, d): keys and values of every head written out."""
        out = []
        for i, at in enumerate(pos):
            by_head = []
            seen = [j for j in range(i + 1) if window is None or at - pos[j] < window]
            for h in range(self.heads):
                content, rotary = self.query(x[i], h, at)
                scores, values = [], []
                for j in seen:
                    latent, k_rotary = self.cached(x[j], pos[j])
                    z = (content @ (self.w_uk[h] @ latent) + rotary @ k_rotary) / self.root
                    scores.append(z * (1.0 if factor is None else factor(len(seen))))
                    values.append(self.w_uv[h] @ latent)
                by_head.append(torch.softmax(torch.stack(scores), 0) @ torch.stack(values))
            out.append(self.w_o @ torch.cat(by_head))
        return torch.stack(out)

    def absorbed(self, x: Tensor, t: int, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One token's output (d,) from the cache alone: no key or value is ever made."""
        latents, rotaries = (torch.stack(part) for part in zip(*cache, strict=True))
        by_head = []
        for h in range(self.heads):
            content, rotary = self.query(x, h, t)
            scores = latents @ (self.w_uk[h].T @ content) + rotaries @ rotary
            mixed = torch.softmax(scores / self.root, 0) @ latents  # a latent again
            by_head.append(self.w_uv[h] @ mixed)
        return self.w_o @ torch.cat(by_head)

    def decoded(self, x: Tensor, pos: list[int]) -> Tensor:
        cache: list[tuple[Tensor, Tensor]] = []
        out = []
        for one, t in zip(x, pos, strict=True):
            cache.append(self.cached(one, t))
            out.append(self.absorbed(one, t, cache))
        return torch.stack(out)


@torch.no_grad()
def output(model: Decoder, x: Tensor, pos: list[int], wanted: int | None = None, layer: int = 0) -> Tensor:
    at = torch.tensor(pos)
    out: Tensor = attention_of(model, layer)(x.float()[None], at, model.acting, wanted or len(pos))
    return out[0]


@pytest.mark.parametrize("encoding", ["rope", "nope"])
@pytest.mark.parametrize("pos", [list(range(T)), DRAWN, [0], list(range(65529, 65537))], ids=str)
@pytest.mark.parametrize(
    "ranks",
    [RANKS, {"kv_rank": 1, "q_rank": 24, "rope_dim": 12}, {"kv_rank": 24, "q_rank": 1, "rope_dim": 2}],
)
def test_explicit_scores(encoding: str, pos: list[int], ranks: dict[str, int]) -> None:
    model = model_of(encoding, **ranks)
    x = inputs(len(pos))
    for layer in range(SHAPE.n_layers):
        exact = Exactly(attention_of(model, layer), turn(encoding))
        assert apart(output(model, x, pos, layer=layer), exact.explicit(x, pos)) < 5e-6


@pytest.mark.parametrize("encoding", ["rope", "nope"])
def test_absorbed_scores_are_the_explicit_ones(encoding: str) -> None:
    model = model_of(encoding)
    exact = Exactly(attention_of(model), turn(encoding))
    x = inputs()
    assert apart(exact.decoded(x, DRAWN), exact.explicit(x, DRAWN)) < 1e-13
    assert apart(exact.decoded(x, DRAWN), output(model, x, DRAWN)) < 5e-6


class TurnedContent(nn.Linear):
    """A map whose output's content parts are turned by the token's position as well: the double encoding."""

    def __init__(self, plain: nn.Linear, pos: list[int], parts: list[slice]) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False)
        self.weight = plain.weight
        self.pos, self.parts = pos, parts

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x).clone()
        for t, at in enumerate(self.pos):
            for part in self.parts:
                y[0, t, part] = turn("rope")(y[0, t, part], at).float()
        return y


def test_absorbed_scores_fail_once_a_rotation_enters_the_latent_part() -> None:
    model, pos, x = model_of("rope"), list(range(T)), inputs()
    attention = attention_of(model)
    exact = Exactly(attention, turn("rope"))
    before = apart(exact.decoded(x, pos), output(model, x, pos))
    whole = WIDTH + attention.rope_dim
    content = [slice(h * whole, h * whole + WIDTH) for h in range(HEADS)]
    keys = [slice(h * WIDTH, (h + 1) * WIDTH) for h in range(HEADS)]
    with torch.no_grad():
        attention.q_up = TurnedContent(attention.q_up, pos, content)
        attention.kv_up = TurnedContent(attention.kv_up, pos, keys)
        double = output(model, x, pos)
    difference = (exact.decoded(x, pos) - double).abs().amax(-1)
    assert before < 5e-6
    assert difference[0] < 5e-6  # the first token has one key, whatever its score
    assert difference.max() > 1e-2 > 1000 * before, difference
    # Absorbed, the map from query to latent would have to be another one at every distance.
    w_uk = exact.w_uk[0]
    rotated = [
        torch.stack([turn("rope")(column, r) for column in w_uk.T.unbind()], dim=-1) for r in (0, 1, 2)
    ]
    assert min(apart(rotated[0], rotated[1]), apart(rotated[1], rotated[2])) > 0.1


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["rope", "nope"])
@pytest.mark.parametrize("pos", [list(range(T)), DRAWN])
def test_a_model_decodes_from_the_cache_alone(encoding: str, pos: list[int]) -> None:
    """Token by token, with kv_rank + rope_dim numbers a token and layer of what came before."""
    model = model_of(encoding)
    tokens = torch.randint(VOCABULARY, (T,), generator=torch.Generator().manual_seed(4)).tolist()
    exact = [Exactly(attention_of(model, layer), turn(encoding)) for layer in range(SHAPE.n_layers)]
    caches: list[list[tuple[Tensor, Tensor]]] = [[] for _ in exact]
    wide = copy.deepcopy(model).double()
    rows = []
    for token, t in zip(tokens, pos, strict=True):
        stream = wide.embedding.weight[token]
        for block, attention, cache in zip(wide.blocks, exact, caches, strict=True):
            x = norm(stream, block.attention_norm.weight)
            cache.append(attention.cached(x, t))
            stream = stream + attention.absorbed(x, t, cache)
            x = norm(stream, block.mlp_norm.weight)
            stream = stream + block.mlp.down.weight @ F.relu(block.mlp.up.weight @ x).square()
        rows.append(wide.embedding.weight @ norm(stream, wide.norm.weight))
        kept = sum(part.numel() for cache in caches for one in cache for part in one)
        assert kept == len(rows) * SHAPE.n_layers * (RANKS["kv_rank"] + RANKS["rope_dim"])
    assert apart(model(torch.tensor([tokens]), torch.tensor(pos))[0], torch.stack(rows)) < 1e-5
    last = model(torch.tensor([tokens]), torch.tensor(pos), 3)[0]
    assert apart(last, torch.stack(rows[-3:])) < 1e-5


class Seen(Encoding):
    """Notes what it is given to turn."""

    name = "seen"

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self.given = q, k, q_pos, k_pos, layer
        return q, k


@torch.no_grad()
def test_the_encoding_turns_the_rotary_parts_alone_and_heads_share_the_key() -> None:
    model = model_of("nope")
    seen = Seen(model.encoding.shape)
    assert seen.shape.head_dim == RANKS["rope_dim"]
    x, attention, exact = inputs(), attention_of(model, 1), Exactly(attention_of(model, 1), turn("nope"))
    attention(x.float()[None], torch.tensor(DRAWN), seen, 3)
    q, k, q_pos, k_pos, layer = seen.given
    assert (q.shape, k.shape, layer) == ((1, HEADS, 3, 4), (1, 1, T, 4), 1)
    assert q_pos.tolist() == DRAWN[-3:] and k_pos.tolist() == DRAWN
    for j in range(T):
        assert apart(k[0, 0, j], exact.cached(x[j], 0)[1]) < 1e-5  # kR: not normed, of the input itself
    for h in range(HEADS):
        assert apart(q[0, h, 0], exact.query(x[T - 3], h, 0)[1]) < 1e-5


@torch.no_grad()
def test_both_latents_are_normed_and_the_rotary_key_is_not() -> None:
    model, x = model_of(), inputs()
    attention = attention_of(model)
    before = output(model, x, DRAWN)
    attention.q_down.weight.mul_(7)
    latent, k_rotary = attention.kv_down.weight.split((RANKS["kv_rank"], RANKS["rope_dim"]))
    latent.mul_(9)
    assert apart(output(model, x, DRAWN), before) < 1e-5
    k_rotary.mul_(3)
    assert apart(output(model, x, DRAWN), before) > 1e-2


@pytest.mark.parametrize("wanted", [1, 3, T])
@pytest.mark.parametrize("most", [1, 60])
def test_blocks_of_queries(wanted: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for window in (None, 3):
        model, x = model_of(window=window), inputs()
        whole = output(model, x, DRAWN)
        with monkeypatch.context() as patched:
            patched.setattr(kernels, "MAX_SCORES", most)
            assert apart(output(model, x, DRAWN, wanted), whole[-wanted:]) < 1e-6


def test_the_fused_kernel_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = model_of(), inputs()
    blocks = output(model, x, DRAWN)
    monkeypatch.setattr(kernels, "CAUSAL_FROM", 1)
    monkeypatch.setattr(kernels, "_blockwise", None)
    assert apart(output(model, x, DRAWN), blocks) < 1e-6


@pytest.mark.parametrize("encoding", ["rope", "nope"])
@pytest.mark.parametrize(
    "window, scale", [(3, "none"), (1, "none"), (None, "logn"), (None, "ssmax"), (4, "logn"), (3, "ssmax")]
)
def test_window_and_scale(encoding: str, window: int | None, scale: str) -> None:
    model, x = model_of(encoding, window=window, scale=scale), inputs()
    exact = Exactly(attention_of(model), turn(encoding))
    factor = None if scale == "none" else lambda n: math.log(n) / math.log(T)  # ssmax starts there
    for pos in (list(range(T)), [0, 1, 2, 5, 6, 7, 8, 20]):
        assert apart(output(model, x, pos), exact.explicit(x, pos, window, factor)) < 5e-6


@torch.no_grad()
def test_randomized_positions_reach_the_rotary_parts() -> None:
    model = model_of(positions=RANDOMIZED)
    pos = model.positions(T, torch.Generator().manual_seed(0)).tolist()
    assert pos == sorted(set(pos)) and pos[-1] >= T and pos[-1] < 16 * T
    x = inputs()
    exact = Exactly(attention_of(model), turn("rope"))
    assert apart(output(model, x, pos), exact.explicit(x, pos)) < 5e-6
    assert apart(output(model, x, pos), output(model, x, list(range(T)))) > 1e-3


@torch.no_grad()
def test_a_joint_shift_changes_nothing_and_the_order_does() -> None:
    model, x = model_of(), inputs()
    assert apart(output(model, x, [t + 1000 for t in DRAWN]), output(model, x, DRAWN)) < 1e-5
    swapped = x[[1, 0, *range(2, T)]]
    assert apart(output(model, swapped, DRAWN)[-1], output(model, x, DRAWN)[-1]) > 1e-4


def test_weights() -> None:
    d, kv, q, r = SHAPE.d_model, RANKS["kv_rank"], RANKS["q_rank"], RANKS["rope_dim"]
    for layer in range(SHAPE.n_layers):
        attention = attention_of(model_of(), layer)
        count = d * q + q + q * HEADS * (WIDTH + r)  # queries: down, norm, up
        count += d * (kv + r) + kv + kv * HEADS * 2 * WIDTH + d * d
        assert sum(p.numel() for p in attention.parameters()) == count
        assert all(p.requires_grad for p in attention.parameters())


def test_every_weight_gets_a_gradient() -> None:
    model = model_of().train()
    tokens = torch.arange(T)[None] % VOCABULARY
    model(tokens, torch.arange(T)).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_published_sizes() -> None:
    """DeepSeek-V2 has 128 heads of 128: latents of 512 and 1536 numbers, 64 rotary ones."""
    with torch.device("meta"):
        a = LatentAttention(16384, 128, 0, kv_rank=None, q_rank=None, rope_dim=None)
    assert (a.kv_rank, a.q_down.out_features, a.rope_dim, a.head_dim) == (512, 1536, 64, 128)
    with torch.device("meta"):
        cut = LatentAttention(64, 4, 0, kv_rank=None, q_rank=None, rope_dim=None)
    assert (cut.kv_rank, cut.q_down.out_features, cut.rope_dim) == (64, 64, 8)


def test_initial_values() -> None:
    shape = ModelShape("wide", d_model=128, n_layers=2, n_heads=4, mlp_ratio=1)
    choice = AttentionChoice("mla", {"kv_rank": 64, "q_rank": 96, "rope_dim": 16})
    sizes = {"d_model": 128, "n_heads": 4, "head_dim": 16, "n_layers": 2, "train_length": T}
    model = Decoder(shape, VOCABULARY, build_encoding("rope", **sizes), attention=choice)
    initialize(model, 0)
    wanted = {"q_down": 128, "q_up": 96, "kv_down": 128, "kv_up": 64, "out": 128 * 4}  # out: 2 layers
    for layer in range(2):
        attention = attention_of(model, layer)
        for name, fan_in in wanted.items():
            weight = attention.get_parameter(f"{name}.weight")
            assert weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.04), name
            assert abs(weight.mean().item()) < 3 * fan_in**-0.5 / math.sqrt(weight.numel())
        assert (attention.q_norm.weight == 1).all() and (attention.kv_norm.weight == 1).all()
    one, other = (attention_of(model, layer).kv_up.weight for layer in range(2))
    assert not torch.equal(one, other)


@pytest.fixture
def always_warned() -> Iterator[None]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def test_bf16_is_near_and_silent(always_warned: None) -> None:
    model, x = model_of(), inputs()
    whole = output(model, x, DRAWN)
    tokens = torch.arange(T)[None] % VOCABULARY
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            near = output(model, x, DRAWN)
            loss = model.train()(tokens, torch.arange(T)).float().logsumexp(-1).sum()
        loss.backward()
    assert 0 < apart(near, whole) < 0.05


def tiny_mla(store: TokenStore, seed: int, encoding: str = "rope") -> Decoder:
    shape = tiny_model.SHAPE
    choice = AttentionChoice("mla", {"kv_rank": 12, "q_rank": None, "rope_dim": None})
    sizes = {"d_model": 32, "n_heads": 2, "head_dim": choice.encoded_width(shape.head_dim), "n_layers": 2}
    own = build_encoding(encoding, train_length=tiny_model.T, **sizes)
    model = Decoder(shape, store.vocab_size, own, attention=choice)
    initialize(model, seed)
    return model


@pytest.fixture
def store(place: Path, corpus: Path) -> TokenStore:
    return tiny_model.tokens_of(corpus)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stopped_and_continued_is_not_stopped(store: TokenStore, tmp_path: Path, precision: str) -> None:
    tiny_model.run(tiny_mla(store, 0), store, tmp_path / "whole", precision=precision)
    for stop in (1, tiny_model.STEPS // 2):
        folder = tmp_path / f"stop-{stop}"
        tiny_model.run(tiny_mla(store, 0), store, folder, stop_after=stop, precision=precision)
        # another seed's model: everything has to come from the checkpoint
        ended = tiny_model.run(tiny_mla(store, 9), store, folder, precision=precision)
        assert (ended.status, ended.step) == ("finished", tiny_model.STEPS)
        assert tiny_model.on_disk(folder) == tiny_model.on_disk(tmp_path / "whole")


Posenc = Callable[..., tiny.Result]

CHOICES = [
    ["encoding=rope"],
    ["encoding=nope"],
    ["encoding=rope", "positions=randomized"],
    ["encoding=rope", "positions=randomized", "attention.window=8", "attention.scale=ssmax"],
]
SLOW = CHOICES[:-1]  # each a part of the last


@pytest.mark.parametrize(
    "choices",
    [pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else []) for one in CHOICES],
    ids=" ".join,
)
def test_a_run_trains_and_is_measured_again(
    train: Posenc, posenc: Posenc, place: Path, choices: list[str]
) -> None:
    done = train("attention=mla", "attention.kv_rank=12", "train.precision=bf16", *choices)
    assert done.code == 0, done.err
    assert "UserWarning" not in done.err and "rms_norm" not in done.err
    (run,) = (place / "runs" / "default").iterdir()
    first = json.loads((run / "results.json").read_text())
    logged = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert logged[-1] < logged[0]
    for path in (run / "results.json", *(run / "records").iterdir()):
        path.unlink()
    assert posenc("eval", f"run={run}").code == 0
    again = json.loads((run / "results.json").read_text())

    def measured(results: dict[str, Any]) -> dict[tuple[Any, ...], float]:
        return {(c["protocol"], c["window"]): c["nats"] for c in results["records"]}

    assert len(measured(first)) > 3
    assert measured(again) == measured(first)


@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal", "t5", "shaw", "xpos"])
def test_encodings_without_a_part_of_their_own_are_refused(train: Posenc, place: Path, encoding: str) -> None:
    refused = train("attention=mla", f"encoding={encoding}")
    assert refused.code == 2 and refused.out == ""
    for text in ("attention=mla", f"encoding={encoding}", "nope, rope"):
        assert text in refused.err
    assert len(refused.err.splitlines()) < 24 and not list(place.iterdir())


def test_refused_in_a_process_of_its_own(place: Path, corpus: Path) -> None:
    arguments = [*tiny.TINY, f"data.paths={corpus}", "attention=mla", "encoding=alibi"]
    refused = tiny.spawn("train", *arguments, cwd=place)
    assert refused.code == 2, refused
    assert "encoding=alibi" in refused.err and "Traceback" not in refused.err
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    "overrides, says",
    [
        (["attention.rope_dim=3"], ["rope_dim=3", "even"]),
        (["attention.rope_dim=0"], ["rope_dim=0", "at least 2"]),
        (["attention.rope_dim=-2"], ["rope_dim=-2"]),
        (["attention.rope_dim=wide"], ["attention.rope_dim=wide", "a whole number"]),
        (["attention.kv_rank=0"], ["kv_rank=0", "1..d_model=32"]),
        (["attention.kv_rank=33"], ["kv_rank=33", "1..d_model=32"]),
        (["attention.q_rank=0"], ["q_rank=0", "1..d_model=32"]),
        (["attention.q_rank=100"], ["q_rank=100", "1..d_model=32"]),
        (["attention.kv_rnk=3"], ["attention.kv_rnk=3", "did you mean: attention.kv_rank"]),
        (["attention.window=0"], ["window=0"]),
        (["attention.scale=log"], ["attention.scale=log", "logn"]),
        (["attention=mlaa"], ["attention=mlaa", "did you mean: mla"]),
        (["attention.name=gqa"], ["attention=gqa", "mha, mla"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_wrong_settings(train: Posenc, place: Path, overrides: list[str], says: list[str]) -> None:
    for encoding in ("rope", "nope"):
        first = [] if overrides[0].startswith("attention=") else ["attention=mla"]
        refused = train(*first, f"encoding={encoding}", *overrides)
        assert refused.code == 2 and refused.out == "", refused
        for text in says:
            assert text in refused.err, refused.err
        assert "Traceback" not in refused.err and not list(place.iterdir())


def test_the_largest_ranks_and_the_smallest_work() -> None:
    for ranks in (
        {"kv_rank": 24, "q_rank": 24, "rope_dim": 2},
        {"kv_rank": 1, "q_rank": 1, "rope_dim": 64},
        {"kv_rank": None, "q_rank": None, "rope_dim": None},
    ):
        assert output(model_of(**ranks), inputs(), DRAWN).isfinite().all()


def test_encodings_see_the_rotary_width() -> None:
    settings = {
        "attention": {"name": "mla", **RANKS, "rope_dim": None, "window": None, "scale": "none"},
        "encoding": {"name": "rope", "base": 1e4, "layout": "half", "fraction": 1.0, "drop_low": 0.0},
        "positions": CONTIGUOUS,
        "context_length": T,
        "plugins": [],
    }
    made = build_decoder(settings, SHAPE, VOCABULARY).encoding
    assert made.shape.head_dim == WIDTH // 2 and made.shape.d_model == SHAPE.d_model

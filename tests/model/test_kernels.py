"""Every kernel against blocks of queries, FlexAttention by an eager stand-in (slow: compiled for the CPU)."""

import pytest
import torch
import torch._dynamo
from tiny_decoder import LayerWindow, OneKeyHead, Widened
from tiny_model import encoding_of

from posenc.encodings.attention_options.window import Window
from posenc.encodings.base import Shape
from posenc.encodings.positions.offset import Offset
from posenc.encodings.positions.randomized import Randomized
from posenc.encodings.registry import own_encodings
from posenc.encodings.shared.composed import Composed
from posenc.model import flex, kernels
from posenc.model.inputs import Heads, Layer

BATCH, HEADS, WIDTH, LAYERS, KEYS = 2, 4, 16, 2, 300  # three blocks of keys: full, partial and empty ones
SHAPE = Shape(HEADS * WIDTH, HEADS, WIDTH, LAYERS, 64)


def filled(made):
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return made


def encoding(name, *options):
    params = {"parts": ["alibi", "t5"]} if name == "sum" else {}
    own = filled(encoding_of(name, 64, HEADS, WIDTH, LAYERS, **params))
    if not options:
        return own
    made = Composed(SHAPE, (own, *options))
    made.own = own  # registers its parameters
    return made


SERVED = [name for name in own_encodings() if encoding(name).hooks <= flex.SERVED]
OPTIONS = {
    "none": [],
    "window of 1": [Window(SHAPE, window=1)],
    "window": [Window(SHAPE, window=200)],
    "sinks": [Window(SHAPE, window=150, first=4)],
    "randomized": [Randomized(SHAPE, max=2000, dense=False)],
    "offset": [Offset(SHAPE, max=2000)],
}


def qkv(queries, keys, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(3, BATCH, keys, HEADS, WIDTH, generator=generator).to(dtype)
    q, k, v = drawn.transpose(2, 3).unbind(0)
    return q[:, :, -queries:] * 2, k, v


def attended(kernel, e, q, k, v, pos, layer=0):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "choose_kernel", lambda *_: kernel)
        x = torch.zeros(BATCH, len(pos), HEADS * WIDTH)
        return kernels.attend(Heads(q, k, v), x, Layer(e, layer, pos))


def eager(q, k, v, *, score_mod, block_mask, scale):
    """What the kernel is asked to compute, in plain tensors with autograd."""
    sizes = (len(q), q.shape[1], q.shape[2], k.shape[2])
    b, h, i, j = (torch.arange(n).view(-1, *[1] * (3 - at)) for at, n in enumerate(sizes))
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) * scale
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j)
    scores = scores.masked_fill(~block_mask.mask_mod(b, h, i, j), float("-inf"))
    return torch.softmax(scores, -1).to(v.dtype) @ v


def test_which_encodings_flex_serves(monkeypatch):
    monkeypatch.setattr(flex, "compiler_works", lambda device: True)
    heads = Heads(*qkv(64, 64))
    assert {name for name in own_encodings() if flex.serves(encoding(name), heads)} == set(SERVED)
    assert {"alibi", "t5", "rope", "sum"} <= set(SERVED)
    assert not set(SERVED) & {"fire", "shaw", "cope"}
    drawn = Randomized(SHAPE, max=None, dense=False)
    assert flex.serves(encoding("alibi", drawn), heads)
    assert not flex.serves(encoding("alibi", drawn, Window(SHAPE, window=9)), heads)
    narrow = Heads(heads.q[..., :8], heads.k[..., :8], heads.v)
    assert not flex.serves(encoding("alibi"), narrow)
    monkeypatch.setattr(flex, "MAX_MASK", 64 * 64 - 1)
    assert not flex.serves(encoding("alibi"), heads)


MASKED = ["nope", "rope", "alibi", "t5", "fire", "rnope_swa", "hard_alibi", OneKeyHead]
CHOICES = [
    *((which, "causal") for which in ("nope", "rope", OneKeyHead)),
    *((which, "masked") for which in MASKED),
    *((which, "flex") for which in (*SERVED, LayerWindow, OneKeyHead, Widened)),
    *((f"t5+{option}", "flex") for option in OPTIONS),
]


@pytest.mark.parametrize("queries", [KEYS, 40, 1])
@pytest.mark.parametrize(("which", "kernel"), CHOICES)
@torch.no_grad()
def test_equals_the_blocks(which, kernel, queries, monkeypatch):
    monkeypatch.setattr(flex, "_compiled", lambda dynamic: eager)
    if isinstance(which, str):
        name, _, option = which.partition("+")
        e = encoding(name, *OPTIONS[option or "none"])
    else:
        e = filled(which(SHAPE))
    pos = e.positions(KEYS, True, torch.Generator().manual_seed(0))
    inputs = (*qkv(queries, KEYS), pos)
    for layer in range(LAYERS):
        want = attended("blocks", e, *inputs, layer)
        assert (attended(kernel, e, *inputs, layer) - want).abs().max() < 1e-5


def test_which_kernel_serves(monkeypatch):
    served = []
    for name in ("_causal", "_masked", "_blockwise"):
        monkeypatch.setattr(kernels, name, lambda *a, name=name: served.append(name))

    def attend(e, keys):
        x = torch.zeros(BATCH, keys, SHAPE.d_model)
        layer = Layer(e, 0, torch.arange(keys))
        kernels.attend(Heads(*qkv(keys, keys)), x, layer)

    many, fewer = kernels.limits().causal_from, kernels.limits().masked_from
    cases = (("rope", fewer), *((which, many) for which in ("rope", "alibi", "learned", "fox")))
    for which, keys in cases:
        attend(encoding(which), keys)
    assert served == ["_blockwise", "_causal", "_blockwise", "_causal", "_blockwise"]
    served.clear()
    with torch.no_grad():
        for which, keys in (("rope", fewer - 1), ("rope", fewer), *cases[1:]):
            attend(encoding(which), keys)
        attend(filled(Widened(SHAPE)), fewer)  # queries wider than values
    assert served == ["_blockwise", "_masked", "_causal", "_masked", "_causal", "_blockwise", "_blockwise"]


@pytest.mark.filterwarnings("error:flex_attention called without torch.compile")
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [KEYS, 40])
@torch.no_grad()
def test_compiled_for_every_served_encoding(queries, dtype):
    inputs = (*qkv(queries, KEYS, dtype), torch.arange(KEYS))
    for e in [*(encoding(name) for name in SERVED), encoding("t5", *OPTIONS["sinks"])]:
        got, want = attended("flex", e, *inputs), attended("blocks", e, *inputs)
        off = (got.float() - want.float()).abs()
        # in bf16 the blocks round their scores, of up to 20, to 8 bits as well
        assert off.max() < (1e-5 if dtype == torch.float32 else 0.1), e.name
        assert off.square().mean().sqrt() < 0.01, e.name

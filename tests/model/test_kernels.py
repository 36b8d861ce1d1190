"""Every kernel against blocks of queries, FlexAttention by an eager stand-in (slow: compiled for the CPU)."""

import copy

import pytest
import torch
from tiny_decoder import LayerWindow, OneKeyHead, Widened
from tiny_model import encoding_of
from torch.nn.attention.flex_attention import AuxOutput

from posenc.encodings.attention_options.entmax import Entmax
from posenc.encodings.attention_options.gate_by_head import GateByHead
from posenc.encodings.attention_options.key_offset import KeyOffset
from posenc.encodings.attention_options.off_by_one import OffByOne
from posenc.encodings.attention_options.output_norm import OutputNorm
from posenc.encodings.attention_options.sink import Sink
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
    made.registered = torch.nn.ModuleList((own, *options))
    return made


def is_served(name):
    made = encoding(name)
    hooks = made.hooks - flex.GATE_HOOKS if made.cumulates_gates else made.hooks
    return hooks <= flex.SERVED


SERVED = [name for name in own_encodings() if is_served(name)]
OPTIONS = {
    "none": [],
    "window of 1": [Window(SHAPE, window=1)],
    "window": [Window(SHAPE, window=200)],
    "sinks": [Window(SHAPE, window=150, first=4)],
    "randomized": [Randomized(SHAPE, max=2000, dense=False)],
    "offset": [Offset(SHAPE, max=2000)],
    "sink": [filled(Sink(SHAPE))],
    "off_by_one": [OffByOne(SHAPE)],
    "window and sink": [Window(SHAPE, window=20), filled(Sink(SHAPE))],
    "gate": [filled(GateByHead(SHAPE))],
    "output norm": [filled(OutputNorm(SHAPE))],
    "key offset": [KeyOffset(SHAPE, moved=[range(8, 16)] * LAYERS)],
}


def qkv(queries, keys, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(3, BATCH, keys, HEADS, WIDTH, generator=generator).to(dtype)
    q, k, v = drawn.transpose(2, 3).unbind(0)
    return Heads(q[:, :, -queries:] * 2, k, v)


def attended(kernel, e, heads, pos, layer=0, x=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "choose_kernel", lambda *_: kernel)
        if x is None:
            x = torch.zeros(BATCH, len(pos), HEADS * WIDTH)
        return kernels.attend(heads, x, Layer(e, layer, pos))


def eager(q, k, v, *, score_mod, block_mask, scale, return_aux=None, **_):
    """What the kernel is asked to compute, in plain tensors with autograd."""
    sizes = (len(q), q.shape[1], q.shape[2], k.shape[2])
    b, h, i, j = (torch.arange(n).view(-1, *[1] * (3 - at)) for at, n in enumerate(sizes))
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) * scale
    if score_mod is not None:
        scores = score_mod(scores, b, h, i, j)
    scores = scores.masked_fill(~block_mask.mask_mod(b, h, i, j), float("-inf"))
    output = torch.softmax(scores, -1).to(v.dtype) @ v
    if return_aux is None:
        return output
    return output, AuxOutput(lse=torch.logsumexp(scores, -1), max_scores=None)


def test_which_encodings_flex_serves(monkeypatch):
    monkeypatch.setattr(flex, "compiler_works", lambda device: True)

    def serves(made, keys=64):
        return flex.serves(made, keys, keys, torch.device("cpu"))

    assert {name for name in own_encodings() if serves(encoding(name))} == set(SERVED)
    assert {"alibi", "t5", "rope", "fire", "fox", "cable", "sum"} <= set(SERVED)
    assert not set(SERVED) & {"path", "shaw", "cope"}
    assert serves(encoding("alibi", Sink(SHAPE)))
    assert serves(encoding("fox", Sink(SHAPE)))
    assert not serves(encoding("alibi", Entmax(SHAPE)))
    drawn = Randomized(SHAPE, max=None, dense=False)
    assert serves(encoding("alibi", drawn))
    assert not serves(encoding("alibi", drawn, Window(SHAPE, window=9)))
    monkeypatch.setattr(flex, "MAX_PAIR_BIAS", HEADS * 64 * 64 - 1)
    assert not serves(encoding("fire"))
    assert serves(encoding("alibi"))
    monkeypatch.setattr(flex, "MAX_MASK", 64 * 64 - 1)
    assert not serves(encoding("alibi"))


def test_gates_with_a_window_are_served_in_evaluation_alone(monkeypatch):
    monkeypatch.setattr(flex, "compiler_works", lambda device: True)
    windowed = encoding("fox", Window(SHAPE, window=9))
    assert not flex.serves(windowed, 64, 64, torch.device("cpu"))
    with torch.no_grad():
        assert flex.serves(windowed, 64, 64, torch.device("cpu"))


def test_a_narrow_head_is_left_to_the_blocks():
    q, k, v = qkv(64, 64)
    layer = Layer(encoding("alibi"), 0, torch.arange(64), mask=object())
    assert kernels.choose_kernel(Heads(q, k, v), layer) == "flex"
    assert kernels.choose_kernel(Heads(q[..., :8], k[..., :8], v), layer) == "blocks"


LEARNED = ["t5", "kerple_log", "kerple_power", "dynamic_bias", "fire", "fox", "cable", "t5+randomized"]
LEARNED += ["t5+sink", "alibi+sink", "rope+sink", "fox+sink", "t5+off_by_one"]


@pytest.mark.parametrize("which", LEARNED)
def test_gradients_equal_those_of_the_blocks(which, monkeypatch):
    """The gradients of learned biases and gates, which are summed without scores in memory, in float64."""
    monkeypatch.setattr(flex, "_compiled", lambda dynamic: eager)
    name, _, option = which.partition("+")
    made = encoding(name, *OPTIONS[option or "none"]).double()
    pos = made.positions(KEYS, True, torch.Generator().manual_seed(0))

    def gradients_by(kernel):
        made.zero_grad()
        q, k, v = (tensor.requires_grad_() for tensor in qkv(KEYS, KEYS, torch.float64))
        x = torch.randn(BATCH, KEYS, SHAPE.d_model, generator=torch.Generator().manual_seed(2)).double()
        x.requires_grad_()
        output = attended(kernel, made, Heads(q, k, v), pos, layer=1, x=x)
        output.backward(torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).double())
        found = {name: parameter.grad for name, parameter in made.named_parameters()}
        found |= {"q": q.grad, "k": k.grad, "v": v.grad, "x": x.grad}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    want = gradients_by("blocks")
    got = gradients_by("flex")
    assert got.keys() == want.keys()
    largest = max(float(gradient.norm()) for gradient in want.values())
    for name, gradient in want.items():
        off = float((got[name] - gradient).norm())
        # biases are float32; where the softmax takes a gradient away, only rounding is left of it
        assert off < 5e-5 * max(float(gradient.norm()), 1e-3 * largest), name


MASKED = ["nope", "rope", "alibi", "t5", "fire", "rnope_swa", "hard_alibi", OneKeyHead]
CHOICES = [
    *((which, "causal") for which in ("nope", "rope", OneKeyHead)),
    *((which, "masked") for which in MASKED),
    *((which, "flex") for which in (*SERVED, LayerWindow, OneKeyHead, Widened)),
    *((f"t5+{option}", "flex") for option in OPTIONS),
    *((f"fox+{option}", "flex") for option in ("sink", "window and sink")),
    *((f"t5+{option}", "masked") for option in OPTIONS),
    *((f"rope+{option}", "masked") for option in ("sink", "off_by_one")),
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
    inputs = (qkv(queries, KEYS), pos)
    for layer in range(LAYERS):
        want = attended("blocks", e, *inputs, layer)
        # sums of up to 300 gates are rounded to float32, each kernel in its own way
        limit = 2e-5 if e.cumulates_gates else 1e-5
        assert (attended(kernel, e, *inputs, layer) - want).abs().max() < limit


def test_which_kernel_serves(monkeypatch):
    served = []
    for name in ("_causal", "_masked", "_blockwise"):
        monkeypatch.setattr(kernels, name, lambda *a, name=name: served.append(name))

    def attend(e, keys):
        x = torch.zeros(BATCH, keys, SHAPE.d_model)
        layer = Layer(e, 0, torch.arange(keys))
        kernels.attend(qkv(keys, keys), x, layer)

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


@pytest.mark.parametrize(("dtype", "kernel"), [(torch.float32, "masked"), (torch.bfloat16, "blocks")])
@torch.no_grad()
def test_a_bias_goes_to_the_fused_kernel_in_float32_alone(dtype, kernel):
    """In bf16 autocast would round the bias."""
    keys = kernels.limits().masked_from
    layer = Layer(encoding("alibi"), 0, torch.arange(keys))
    assert kernels.choose_kernel(qkv(keys, keys, dtype), layer) == kernel


def exactly_attended(e, queries):
    """What FlexAttention is asked for, in float64: of gates the blocks are 1e-5 off in float32."""
    x = torch.zeros(BATCH, KEYS, HEADS * WIDTH, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "_compiled", lambda dynamic: eager)
        heads = qkv(queries, KEYS, torch.float64)
        return attended("flex", copy.deepcopy(e).double(), heads, torch.arange(KEYS), x=x)


@pytest.mark.filterwarnings("error:flex_attention called without torch.compile")
@pytest.mark.slow
@pytest.mark.parametrize("queries", [KEYS, 40])
@torch.no_grad()
def test_compiled_for_every_served_encoding(queries):
    for e in [*(encoding(name) for name in SERVED), encoding("t5", *OPTIONS["sinks"])]:
        got = attended("flex", e, qkv(queries, KEYS), torch.arange(KEYS))
        assert (got - exactly_attended(e, queries)).abs().max() < 1e-5, e.name


@pytest.mark.filterwarnings("error:flex_attention called without torch.compile")
@pytest.mark.slow
@pytest.mark.parametrize("queries", [KEYS, 40])
@torch.no_grad()
def test_compiled_in_bf16_for_every_served_encoding(queries):
    inputs = (qkv(queries, KEYS, torch.bfloat16), torch.arange(KEYS))
    for e in [*(encoding(name) for name in SERVED), encoding("t5", *OPTIONS["sinks"])]:
        off = (attended("flex", e, *inputs).float() - attended("blocks", e, *inputs).float()).abs()
        assert off.max() < 0.1, e.name  # the blocks round their scores, of up to 20, to 8 bits as well
        assert off.square().mean().sqrt() < 0.01, e.name

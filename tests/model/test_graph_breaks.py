"""Blocks compile without a graph break, also where a GPU would attend by FlexAttention.

Dynamo traces here as on a GPU: what it hands to the compiler is run as it is, so a CPU suffices.
"""

import pytest
import torch
from tiny_model import encoding_of

from posenc.encodings.options import build_options
from posenc.encodings.registry import own_encodings
from posenc.model import decoder, flex
from posenc.model.decoder import Decoder, ModelShape, initialize

SHAPE = ModelShape("tiny", d_model=64, n_layers=2, n_heads=4, mlp_ratio=2)
T = 128  # FlexAttention takes no fewer keys
BATCH = 2
VOCABULARY = 50
# What breaks a graph, and why. A GPU runs these in pieces, each of them compiled.
BREAKING = {
    "dape": "calls torch.autograd.grad inside of a pass",
    "fope": "draws its series on the CPU",
    "tape": "its `prepare` is kept out of the compiler",
    "xpos": "reads a position as a number of Python's",
}
PRO = {"token_shift": True, "output_norm": True, "gate": "element"}
NAMES = [name for name in own_encodings() if name not in ("hybrid", "sum")]  # made of the others
IN_EVERY_RUN = ("rope", "t5", "fox")
WITH_GRADIENTS_OF_THEIR_OWN = ("t5", "fox", "fire")
TOLERANCE = 1e-4  # of a gradient, relative to its norm: 1.5e-5 for a sum of gates, below 5e-6 for all others


def each(names):
    """Return parameters of a test, of which the fast ones are part of every run of the tests."""
    return [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture
def flex_on_a_cpu(monkeypatch):
    """Choose FlexAttention where a GPU would, though there is none; list the masks that were made."""
    from torch.nn.attention import flex_attention

    masks = []

    def fused_mask(encoding, layer, queries, pos):
        is_plain = encoding.hooks.isdisjoint(
            {"bias", "distance_bias", "visible", "scores", "weights", "values"}
        )
        if is_plain or not flex.serves(encoding, queries, len(pos), pos.device):
            return None
        masks.append(flex.block_mask(flex.masking(encoding), layer, queries, len(pos), pos.device))
        return masks[-1]

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)  # no gradients on a CPU
    monkeypatch.setattr(flex, "compiler_works", lambda device: True)
    monkeypatch.setattr(decoder, "fused_mask", fused_mask)
    return masks


def model_of(name, attention=None):
    """Build a model whose encoding has moved off its start, where a gradient may be zero."""
    encoding = encoding_of(name, T, SHAPE.n_heads, SHAPE.head_dim, SHAPE.n_layers)
    options = build_options(
        encoding.shape, encoding, positions={"name": "contiguous"}, attention=attention or {}
    )
    model = Decoder(SHAPE, VOCABULARY, encoding, options)
    initialize(model, 0)
    for parameter in [*model.encoding.parameters(), *model.options.parameters()]:
        generator = torch.Generator().manual_seed(0)
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def compile_blocks(model, backend):
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend=backend, fullgraph=True)


@pytest.fixture(autouse=True)
def compiled_as_in_a_training():
    with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        yield
    torch._dynamo.reset()


def output_and_gradients(model):
    """Return the last hidden numbers, and the gradients of all parameters that change more than rounding."""
    tokens = torch.randint(VOCABULARY, (BATCH, T), generator=torch.Generator().manual_seed(1))
    pos = model.positions(T, torch.Generator().manual_seed(0))
    hidden = model.hidden(tokens, pos)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
    (hidden * weights).sum().backward()
    tensors = {"hidden": hidden.detach()}
    for name, parameter in model.named_parameters():
        is_inert = name.removeprefix("encoding.") in model.encoding.inert
        if parameter.grad is not None and not is_inert:
            tensors[name] = parameter.grad
    model.zero_grad()
    return tensors


def check_compiled(name, backend, monkeypatch, attention=None):
    """Assert that blocks in one graph compute what plain ones do by blocks of queries."""
    compiled = model_of(name, attention)
    compile_blocks(compiled, backend)
    by_graph = output_and_gradients(compiled)
    monkeypatch.setattr(decoder, "fused_mask", lambda *arguments: None)
    by_blocks = output_and_gradients(model_of(name, attention))
    assert by_graph.keys() == by_blocks.keys()
    for key, tensor in by_blocks.items():
        off = (by_graph[key] - tensor).norm() / tensor.norm().clamp_min(1e-9)
        assert off < TOLERANCE, key


@pytest.mark.parametrize("name", each(name for name in NAMES if name not in BREAKING))
def test_a_block_is_one_graph_with_the_same_numbers(name, flex_on_a_cpu, monkeypatch):
    check_compiled(name, "eager", monkeypatch)


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        pytest.param("nope", {"normalizer": "sink", "gate": "head", "key_offset": True}, id="nope"),
        pytest.param("rope", {"normalizer": "entmax"}, id="entmax"),
        pytest.param("rope", {"normalizer": "asentmax"}, id="asentmax", marks=pytest.mark.slow),
        pytest.param("t5", {"normalizer": "sink"}, id="learned bias", marks=pytest.mark.slow),
        pytest.param(
            "fox", {"normalizer": "off_by_one", "gate": "element"}, id="gates", marks=pytest.mark.slow
        ),
        pytest.param("fox", PRO, id="pro", marks=pytest.mark.slow),
    ],
)
def test_a_block_with_options_is_one_graph_too(name, attention, flex_on_a_cpu, monkeypatch):
    check_compiled(name, "eager", monkeypatch, attention)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_GRADIENTS_OF_THEIR_OWN)
def test_the_backward_pass_is_one_graph_too(name, flex_on_a_cpu, monkeypatch):
    check_compiled(name, "aot_eager", monkeypatch)


@pytest.mark.parametrize("name", WITH_GRADIENTS_OF_THEIR_OWN)
def test_learned_biases_and_gates_are_left_to_flex_attention(name, flex_on_a_cpu):
    decoder.fused_mask(model_of(name).encoding, 0, T, torch.arange(T))
    assert flex_on_a_cpu


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKING)
def test_what_is_listed_as_breaking_breaks(name, flex_on_a_cpu):
    model = model_of(name)
    compile_blocks(model, "eager")
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        output_and_gradients(model)

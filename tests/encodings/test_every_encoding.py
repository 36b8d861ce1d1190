"""Laws over every YAML of conf/encoding: a new encoding is held to them without touching this file."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from posenc.encodings import build_encoding, check_encoding, encoding_class, list_encodings
from posenc.encodings.base import Encoding
from posenc.model.decoder import Decoder, ModelShape, count_parameters
from posenc.model.init import initialize
from posenc.model.kernels import FUSED_FROM
from posenc.paths import conf_dir
from posenc.seeds import generator_for
from posenc.signature import parameters_of

T, VOCABULARY = 32, 17
SHAPE = ModelShape("law", d_model=32, n_layers=2, n_heads=4, mlp_ratio=2)

PATHS = sorted((conf_dir() / "encoding").glob("*.yaml"))
NAMES = [path.stem for path in PATHS]
every_encoding = pytest.mark.parametrize("name", NAMES)


def settings(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def built(name: str, seed: int = 0) -> Decoder:
    encoding = build_encoding(
        name,
        d_model=SHAPE.d_model,
        n_heads=SHAPE.n_heads,
        head_dim=SHAPE.head_dim,
        n_layers=SHAPE.n_layers,
        train_length=T,
    )
    model = Decoder(SHAPE, VOCABULARY, encoding)
    initialize(model, seed)
    # What starts at zero (a bias table) would hide its own faults.
    for number, parameter in enumerate(model.encoding.parameters()):
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, generator=generator_for(seed, "law", number))
    return model


def tokens(n: int, batch: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(n))


def logits(model: Decoder, ids: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        return model(ids, model.positions(ids.shape[1], generator_for(0, "law")))


def test_there_are_encodings() -> None:
    assert set(NAMES) >= {"nope", "learned", "sinusoidal", "rope", "alibi", "t5"}
    assert list_encodings() == NAMES


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_yaml_file_module_and_class_have_one_name(path: Path) -> None:
    assert settings(path)["name"] == path.stem
    cls = encoding_class(path.stem)
    assert cls.name == path.stem
    assert cls.__module__ == f"posenc.encodings.{path.stem}"
    assert check_encoding(settings(path)) is cls


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_yaml_and_signature_have_the_same_parameters(path: Path) -> None:
    cls = encoding_class(path.stem)
    assert set(settings(path)) - {"name"} == set(parameters_of(cls))
    for name, parameter in inspect.signature(cls).parameters.items():
        if name != "shape":
            assert parameter.default is inspect.Parameter.empty, f"{name}: the YAML is the default's home"
            assert parameter.annotation is not inspect.Parameter.empty


@every_encoding
def test_says_what_it_is(name: str) -> None:
    cls = encoding_class(name)
    for attribute in ("paper", "formula", "past_training"):
        text = getattr(cls, attribute)
        assert isinstance(text, str) and text and "\n" not in text
    assert cls.acts_on in {"embed", "rotate", "bias", "mask", "scores", "weights", "several", "nothing"}
    assert (cls.acts_on == "nothing") == (not built(name).encoding.hooks)
    assert cls.__doc__ and inspect.getmodule(cls).__doc__
    assert cls.revision >= 1
    assert all(isinstance(text, str) for text in built(name).encoding.warnings())


@every_encoding
@pytest.mark.parametrize("cut", [1, T // 2, T - 1, T])
def test_causal_bit_for_bit(name: str, cut: int) -> None:
    model, ids = built(name), tokens(2 * T)
    changed = ids.clone()
    changed[:, cut:] = (changed[:, cut:] + 1) % VOCABULARY
    before, after = logits(model, ids), logits(model, changed)
    assert torch.equal(before[:, :cut], after[:, :cut])
    assert not torch.equal(before[:, cut:], after[:, cut:])


@every_encoding
@pytest.mark.parametrize("longer", [T + 1, 8 * T, FUSED_FROM + 4])
def test_a_longer_text_leaves_its_prefix_alone(name: str, longer: int) -> None:
    model, ids = built(name), tokens(longer)
    difference = (logits(model, ids)[:, :T] - logits(model, ids[:, :T])).abs().max().item()
    if model.encoding.prefix_stable:
        assert difference < 1e-5
    else:
        assert difference > 1e-5, "declared as unstable, and is not"


@every_encoding
def test_order_of_the_past_matters_with_two_layers(name: str) -> None:
    model, ids = built(name), torch.arange(T)[None] % VOCABULARY
    moved = ids.clone()
    moved[:, : T - 1] = ids[:, : T - 1].flip(-1)
    assert (logits(model, ids)[:, -1] - logits(model, moved)[:, -1]).abs().max() > 1e-3


@every_encoding
def test_finite_far_past_the_training_length_in_fp32_and_bf16(name: str) -> None:
    model, ids = built(name), tokens(8 * T)
    exact = logits(model, ids)
    assert exact.dtype == torch.float32 and exact.isfinite().all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits(model, ids)
    assert rounded.dtype == torch.bfloat16 and rounded.isfinite().all()
    off = (rounded.float() - exact).square().mean(dim=(0, 2)).sqrt()  # (T,), of logits of variance 1
    assert off.max() < 0.02
    # positions that fade in bf16 would grow with the length
    assert off[-T:].mean() < 1.5 * off[:T].mean()


@every_encoding
def test_gradient_reaches_every_parameter(name: str) -> None:
    model = built(name).train()
    pos = model.positions(T, generator_for(0, "law"))
    model(tokens(T, batch=4), pos).logsumexp(-1).square().sum().backward()
    own = dict(model.encoding.named_parameters())
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all() and (parameter.grad != 0).any(), parameter_name
    assert count_parameters(model)["encoding"] == sum(p.numel() for p in own.values())
    assert not any(buffer.requires_grad for buffer in model.buffers())


@every_encoding
def test_long_windows_leave_no_trace(name: str) -> None:
    model, short, long = built(name), tokens(T), tokens(8 * T)
    model.train()
    model(short, model.positions(T, generator_for(0, "law"))).sum().backward()
    before, far = logits(model, short), logits(model, long)
    assert torch.equal(logits(model, short), before)
    assert torch.equal(logits(model, long), far)
    assert torch.equal(logits(built(name), long), far)  # a process that never saw T


@every_encoding
def test_weights_load_at_another_window(name: str, tmp_path: Path) -> None:
    model, fresh = built(name), built(name)
    far = logits(model, tokens(8 * T))
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, tmp_path / "w")
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh.load_state_dict(load_file(tmp_path / "w"), strict=True)
    assert torch.equal(logits(fresh, tokens(8 * T)), far)
    assert torch.equal(logits(fresh, tokens(T)), logits(model, tokens(T)))
    extra = set(model.encoding.state_dict()) - {key for key, _ in model.encoding.named_parameters()}
    assert not extra, "a buffer that is saved ties the checkpoint to its length"


@every_encoding
@pytest.mark.parametrize("seed", [0, 1])
def test_shared_parts_start_alike_whatever_the_encoding(name: str, seed: int) -> None:
    here = {key: p for key, p in built(name, seed).named_parameters() if not key.startswith("encoding.")}
    there = {key: p for key, p in built("nope", seed).named_parameters() if not key.startswith("encoding.")}
    assert here.keys() == there.keys()
    assert all(torch.equal(here[key], there[key]) for key in here)


@every_encoding
def test_positions_are_increasing_whole_numbers(name: str) -> None:
    for training in (True, False):
        model = built(name).train(training)
        pos = model.positions(50, generator_for(1, "law"))
        assert pos.shape == (50,) and pos.dtype == torch.int64
        assert pos[0] >= 0 and (pos.diff() > 0).all()
        assert torch.equal(pos, model.positions(50, generator_for(1, "law")))


@every_encoding
def test_the_last_tokens_alone_equal_the_tail(name: str) -> None:
    model, ids = built(name).eval(), tokens(3 * T)
    pos = model.positions(3 * T, generator_for(0, "law"))
    with torch.no_grad():
        tail = model(ids, pos, 5)
    assert (tail - logits(model, ids)[:, -5:]).abs().max() < 1e-5


@every_encoding
def test_a_misspelt_parameter_is_refused(name: str) -> None:
    cls: type[Encoding] = encoding_class(name)
    with pytest.raises(Exception, match=r"encoding\.no_such_parameter"):
        check_encoding({"name": cls.name, "no_such_parameter": 1})

"""Laws of training: gradients, number of parameters, initial values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.laws.subject import NotApplicableError, Subject, Verdict, require, tokens
from posenc.model.decoder import count_parameters, initialize

ARITHMETIC = {"__builtins__": {}, "min": min, "max": max, "round": round, "int": int, "abs": abs}


def gradient(subject: Subject) -> Verdict:
    """Check the gradient of every parameter at T, in float32 and in bf16: finite, and not all zero."""
    for enabled in (False, True):
        model = subject.fresh().train()
        n, where = subject.train_length, " in bf16" if enabled else ""
        pos = model.positions(n, generator_for(0, "law"))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = model(tokens(model, n, batch=4), pos)
        out.float().logsumexp(-1).square().sum().backward()
        for name, parameter in model.named_parameters():
            require(parameter.grad is not None, f"no gradient reaches {name}{where}")
            assert parameter.grad is not None
            require(bool(parameter.grad.isfinite().all()), f"the gradient of {name} is not finite{where}")
            for part, grad in _by_layer(name, parameter.grad, len(model.blocks)):
                require(bool((grad != 0).any()), f"the gradient of {part} is zero{where}")
        require(not any(buffer.requires_grad for buffer in model.buffers()), "a buffer requires a gradient")
    every, own = (len(list(module.parameters())) for module in (model, model.encoding))
    return Verdict("pass", f"{every} tensors, {own} of its own")


def _by_layer(name: str, grad: Tensor, layers: int) -> list[tuple[str, Tensor]]:
    """Split the gradient of an encoding's parameter whose first size is the number of layers."""
    if not name.startswith("encoding.") or grad.ndim < 2 or len(grad) != layers:
        return [(name, grad)]
    return [(f"{name}[{layer}]", one) for layer, one in enumerate(grad)]


def count(subject: Subject) -> Verdict:
    """Evaluate `learned` with the values of this model and compare."""
    model = subject.fresh()
    encoding = model.encoding
    declared = _declared(encoding, subject.settings)
    real = count_parameters(model)["encoding"]
    figure = f"{declared:,} declared, {real:,} there"
    require(declared == real, f"learned = {encoding.learned!r} is not what it has", figure)
    return Verdict(
        "pass", f"{real:,}", f"learned = {encoding.learned}" if encoding.learned else "of its parts"
    )


def seeds(subject: Subject) -> Verdict:
    """Initial values depend on the seed and the parameter's name, not on the encoding or on other draws."""
    for seed in (0, 1):
        model = subject.build(seed)
        for name, parameter in model.encoding.named_parameters():
            value = torch.full(parameter.shape, float("nan"))
            with torch.no_grad():
                model.encoding.initialize(name, value, generator_for(seed, name))
            require(bool(value.isfinite().all()), f"initialize leaves values of {name} as they were")
        with torch.random.fork_rng():
            torch.manual_seed(seed + 1)  # the global generator must not matter
            again = dict(subject.build(seed).named_parameters())
        plain = copy.deepcopy(model)
        plain.encoding = Encoding(model.encoding.shape)
        initialize(plain, seed)
        shared = dict(plain.named_parameters())
        for name, parameter in model.named_parameters():
            require(torch.equal(parameter, again[name]), f"{name} starts elsewhere the second time")
            require(
                name not in shared or torch.equal(parameter, shared[name]),
                f"{name} starts elsewhere than without the encoding",
            )
    return Verdict("pass", "two seeds, bit for bit")


def _declared(encoding: Encoding, settings: Mapping[str, Any]) -> int:
    """Return the declared number of parameters; of a sum, that of its parts together."""
    if encoding.learned is not None:
        s = encoding.shape
        sizes = {"T": s.positions, "d": s.d_model, "D": s.head_dim, "H": s.n_heads, "L": s.n_layers}
        # eval: the text belongs to the class, whose code runs anyway
        return int(eval(encoding.learned, dict(ARITHMETIC), {**settings, **sizes}))
    parts = getattr(encoding, "parts", ())
    theirs = next((value for value in settings.values() if isinstance(value, list)), [])
    if not parts or len(parts) != len(theirs):
        raise NotApplicableError("declares no count")
    return sum(_declared(part, own) for part, own in zip(parts, theirs, strict=True))

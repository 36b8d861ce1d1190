"""Laws of numbers: finite, as exact as float64, gradients, number of parameters, initial values."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.laws.subject import (
    FAR,
    LONGEST,
    NotApplicableError,
    Subject,
    Verdict,
    bounded,
    identical,
    largest,
    logits,
    require,
    tokens,
    within,
)
from posenc.model.decoder import Decoder, count_parameters

# Logits of variance 1 agree to 6e-6, at widths of 32 to 256 alike. Angles in float32 are off by 2e-4, tables
# in bf16 by 4e-3.
FLOAT32 = 5e-5
# Root mean square over T tokens, logits of variance 1: 0.005 to 0.008 with two layers, at most 0.017 with
# four. A sum kept in bf16 is off by 0.15 at 8T.
BF16 = 0.03
GROWTH = 1.5  # of the error with the length

NARROW = {torch.float32, torch.float16, torch.bfloat16}
CASTS: set[Any] = {Tensor.float, Tensor.half, Tensor.bfloat16}
# Random draws differ between float32 and float64: drawn in float32 and widened, they are the same numbers.
DRAWS: set[Any] = {torch.rand, torch.randn}
ARITHMETIC = {"__builtins__": {}, "min": min, "max": max, "round": round, "int": int, "abs": abs}


def float32(subject: Subject) -> Verdict:
    """Float32 is as good as float64 at positions to 65 536."""
    model = subject.fresh()
    pos = far_positions(subject, model)
    ids = tokens(model, len(pos))
    rounded = logits(model, ids, pos)
    with Float64():
        wide = subject.anywhere(subject.fresh())
        with torch.no_grad():
            for to, of in zip(wide.parameters(), model.parameters(), strict=True):
                to.copy_(of)
        exact = logits(wide, ids, pos)
    reason = f"float32 differs from float64 at positions to {FAR - 1}"
    return Verdict("pass", bounded(within(largest(rounded.double(), exact), FLOAT32, reason), FLOAT32))


def bf16(subject: Subject) -> Verdict:
    """Bf16 and fp32 are finite and agree, alike at every length to 8T, and at positions to 65 536.

    The last T tokens of every length are compared, where errors add up. Up to 256 tokens every position is
    exact in bf16; that later ones are not shows far out.
    """
    model, length, refused = subject.fresh(), subject.train_length, ""
    lengths = subject.windows(length * times for times in (1, 2, 4, LONGEST))
    off = [_bf16_off(model, n, None, length, f"at {n} tokens") for n in lengths]
    require(max(off) < GROWTH * off[0], f"bf16 is {max(off) / off[0]:.1f} times as far off at longer windows")
    try:
        pos = far_positions(subject, model)
        off.append(_bf16_off(model, len(pos), pos, length, f"at positions to {FAR - 1}"))
    except NotApplicableError as error:
        refused = str(error)
    return Verdict("pass", bounded(max(off), BF16), refused)


def _bf16_off(model: Decoder, n: int, pos: Tensor | None, last: int, where: str) -> float:
    """Return the difference of bf16 and float32 over the last tokens of a window of n."""
    ids = tokens(model, n)
    exact = logits(model, ids, pos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits(model, ids, pos)
    found = exact.dtype, rounded.dtype
    require(found == (torch.float32, torch.bfloat16), f"logits are {found} in float32 and bf16 {where}")
    off = (rounded.float() - exact).square().mean(dim=(0, 2)).sqrt()  # (n,)
    return within(off[-last:].mean().item(), BF16, f"bf16 and float32 differ {where}")


def far_positions(subject: Subject, model: Decoder) -> Tensor:
    """Return T positions from zero on and T below FAR, or 2T below FAR, (2T,), that the model accepts."""
    subject.anywhere(model)
    length = subject.train_length
    near = torch.arange(length)
    reason = ""
    for pos in (torch.cat((near, FAR - length + near)), torch.arange(FAR - 2 * length, FAR)):
        try:
            logits(model, tokens(model, len(pos)), pos)
        except ValueError as error:
            reason = f"refuses far positions: {error}"
        else:
            return pos
    raise NotApplicableError(reason)


class Float64(TorchFunctionMode):
    """Inside, torch uses float64 for float32 or less; make the model inside, with its constants."""

    def __enter__(self) -> None:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_default_dtype(self._before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in DRAWS:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        args = tuple(_widened(value) for value in args)
        return func(*args, **{key: _widened(value) for key, value in kwargs.items()})


def _widened(value: Any) -> Any:
    # the type first: `in` would compare a tensor
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def gradient(subject: Subject) -> Verdict:
    """A finite gradient reaches every parameter, in fp32 and bf16."""
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
            by_layer = name.startswith("encoding.") and parameter.shape[0] == len(model.blocks)
            parts = parameter.grad if by_layer and parameter.ndim > 1 else parameter.grad[None]
            for layer, grad in enumerate(parts):
                part = f"{name}[{layer}]" if len(parts) > 1 else name
                require(bool((grad != 0).any()), f"the gradient of {part} is zero{where}")
    every, own = (len(list(module.parameters())) for module in (model, model.encoding))
    return Verdict("pass", f"{every} tensors, {own} of its own")


def count(subject: Subject) -> Verdict:
    """The declared number of parameters is the real one."""
    model = subject.fresh()
    encoding = model.encoding
    declared = _declared(encoding, subject.settings)
    real = count_parameters(model)["encoding"]
    figure = f"{declared:,} declared, {real:,} there"
    require(declared == real, f"learned = {encoding.learned!r} is not what it has", figure)
    return Verdict("pass", f"{real:,}", f"learned = {encoding.learned or 'as its parts'}")


def seeds(subject: Subject) -> Verdict:
    """Initial values follow from the seed and the parameter's name, whatever else is drawn."""
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
        for name, parameter in model.named_parameters():
            identical(parameter, again[name], f"{name} starts elsewhere the second time")
    return Verdict("pass", "two seeds, bit for bit")


def _declared(encoding: Encoding, settings: Mapping[str, Any]) -> int:
    """Return the declared number of parameters; of a sum, that of its parts together."""
    if encoding.learned is not None:
        s = encoding.shape
        sizes = {"T": s.positions, "d": s.d_model, "D": s.head_dim, "H": s.n_heads, "L": s.n_layers}
        # eval: the text belongs to the class, whose code runs anyway
        return int(eval(encoding.learned, dict(ARITHMETIC), {**settings, **sizes}))
    parts, theirs = getattr(encoding, "parts", ()), settings.get("parts", ())
    if not parts:
        raise NotApplicableError("declares no count")
    return sum(_declared(part, own) for part, own in zip(parts, theirs, strict=True))

"""Laws of numbers: finite, as exact as float64, gradients, number of parameters, initial values."""

import copy
import math
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
from posenc.model.decoder import Decoder, count_parameters, initialize

# Logits of variance 1 agree to 6e-6, at widths of 32 to 256 alike. Angles in float32 are off by 2e-4, tables
# in bf16 by 4e-3.
FLOAT32 = 5e-5
# Root mean square over T tokens, logits of variance 1: 0.005 to 0.008 with two layers, at most 0.017 with
# four; 0.04 at single tokens. A sum kept in bf16 is off by 0.15 at 8T.
BF16 = 0.03
BF16_TOKEN = 0.1
GROWTH = 1.5  # of the error with the length

NARROW = {torch.float32, torch.float16, torch.bfloat16}
CASTS: set[Any] = {Tensor.float, Tensor.half, Tensor.bfloat16}
# Random draws differ between float32 and float64: drawn in float32 and widened, they are the same numbers.
DRAWS: set[Any] = {torch.rand, torch.randn}
DRAWS_IN_PLACE: set[Any] = {Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.log_normal_}
ARITHMETIC = {"__builtins__": {}, "min": min, "max": max, "round": round, "int": int, "abs": abs}


def finite(subject: Subject) -> Verdict:
    """Check the longest window, and positions near FAR."""
    n = subject.longest()
    model = subject.fresh()
    _is_finite(logits(model, tokens(model, n)), torch.float32, f"{n} tokens")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _is_finite(logits(model, tokens(model, n)), torch.bfloat16, f"{n} tokens")
    try:
        pos = far_positions(subject, model)
    except NotApplicableError as error:
        return Verdict("pass", f"{n} tokens", str(error))
    _is_finite(logits(model, tokens(model, len(pos)), pos), torch.float32, f"positions to {FAR - 1}")
    return Verdict("pass", f"{n} tokens, positions to {FAR - 1}")


def _is_finite(x: Tensor, dtype: torch.dtype, where: str) -> None:
    require(x.dtype == dtype, f"logits are {x.dtype} and not {dtype} at {where}")
    require(bool(x.isfinite().all()), f"logits are not finite at {where} ({dtype})")


def diverged(subject: Subject) -> Verdict:
    """Run with weights that are nan, as after a diverging step, and with scores that overflow.

    A diverged training is seen by its loss; an index made of nan raises instead, or kills a GPU's context.
    """
    for spoilt, factor in (("nan", torch.nan), ("too large", 1e30)):
        model = subject.fresh()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter is not model.embedding.weight:  # the norm after it makes its overflow zero
                    parameter.mul_(factor)
        ids = tokens(model, subject.train_length)
        for dtype in (torch.float32, torch.bfloat16):
            try:
                with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                    made = logits(model, ids)
            except Exception as error:  # an encoding may raise anything
                require(False, f"weights that are {spoilt} raise {type(error).__name__}: {error} ({dtype})")
            if math.isnan(factor):
                require(not made.isfinite().any(), f"weights that are {spoilt} give finite logits ({dtype})")
    return Verdict("pass", f"{subject.train_length} tokens")


def float32(subject: Subject) -> Verdict:
    """Compare with the same code and parameters with everything in float64."""
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
    """Compare the last T tokens of every length, where errors add up, and positions to FAR.

    Up to 256 tokens every position is exact in bf16; that later ones are not shows far out.
    """
    model, length = subject.fresh(), subject.train_length
    off = [
        _bf16_off(model, n, None, length, f"at {n} tokens")
        for n in subject.windows(length * times for times in (1, 2, 4, LONGEST))
    ]
    require(max(off) < GROWTH * off[0], f"bf16 is {max(off) / off[0]:.1f} times as far off at longer windows")
    try:
        pos = far_positions(subject, model)
    except NotApplicableError as error:
        return Verdict("pass", bounded(max(off), BF16), str(error))
    far = _bf16_off(model, len(pos), pos, length, f"at positions to {FAR - 1}")
    return Verdict("pass", bounded(max(*off, far), BF16))


def _bf16_off(model: Decoder, n: int, pos: Tensor | None, last: int, where: str) -> float:
    """Return the difference of bf16 and float32 over the last tokens of a window of n."""
    ids = tokens(model, n)
    exact = logits(model, ids, pos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits(model, ids, pos).float()
    off = (rounded - exact).square().mean(dim=(0, 2)).sqrt()  # (n,)
    mean = within(off[-last:].mean().item(), BF16, f"bf16 and float32 differ {where}")
    within(off.max().item(), BF16_TOKEN, f"bf16 and float32 differ at a token {where}")
    return mean


def far_positions(subject: Subject, model: Decoder) -> Tensor:
    """Return T positions from zero on and T below FAR; 2T below FAR where that is refused. (2T,) int64

    The model accepts them from here on. Raises NotApplicableError where both are refused.
    """
    subject.anywhere(model)
    length = subject.train_length
    near = torch.arange(length)
    both, alone = torch.cat((near, FAR - length + near)), torch.arange(FAR - 2 * length, FAR)
    reason = ""
    for pos in (both, alone):
        try:
            logits(model, tokens(model, len(pos)), pos)
        except ValueError as error:
            reason = f"refuses far positions: {error}"
        else:
            return pos
    raise NotApplicableError(reason)


class Float64(TorchFunctionMode):
    """Inside, torch uses float64 wherever float32 or less, or no type, is asked for.

    Make a model inside and run it there: its buffers and constants are made anew.
    """

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
        if func in DRAWS_IN_PLACE:
            drawn = torch.empty(args[0].shape, dtype=torch.float32)
            return args[0].copy_(func(drawn, *args[1:], **kwargs))
        args = tuple(_widened(value) for value in args)
        return func(*args, **{key: _widened(value) for key, value in kwargs.items()})


def _widened(value: Any) -> Any:
    # the type first: `in` would compare a tensor
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


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
            by_layer = name.startswith("encoding.") and parameter.shape[0] == len(model.blocks)
            parts = parameter.grad if by_layer and parameter.ndim > 1 else parameter.grad[None]
            for layer, grad in enumerate(parts):
                part = f"{name}[{layer}]" if len(parts) > 1 else name
                require(bool((grad != 0).any()), f"the gradient of {part} is zero{where}")
        require(not any(buffer.requires_grad for buffer in model.buffers()), "a buffer requires a gradient")
    every, own = (len(list(module.parameters())) for module in (model, model.encoding))
    return Verdict("pass", f"{every} tensors, {own} of its own")


def count(subject: Subject) -> Verdict:
    """Evaluate `learned` with the values of this model and compare."""
    model = subject.fresh()
    encoding = model.encoding
    declared = _declared(encoding, subject.settings)
    real = count_parameters(model)["encoding"]
    figure = f"{declared:,} declared, {real:,} there"
    require(declared == real, f"learned = {encoding.learned!r} is not what it has", figure)
    return Verdict("pass", f"{real:,}", f"learned = {encoding.learned or 'as its parts'}")


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
            identical(parameter, again[name], f"{name} starts elsewhere the second time")
            identical(
                parameter, shared.get(name, parameter), f"{name} starts elsewhere than without the encoding"
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

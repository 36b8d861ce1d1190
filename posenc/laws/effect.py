"""The law of settings and parameters that do nothing: each changes a number, or is declared inert."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, owner_of
from posenc.laws.float64 import Float64
from posenc.laws.subject import Subject, logits, parameters_of_encodings, tokens
from posenc.laws.verdict import Verdict, largest_difference, require
from posenc.model.decoder import Decoder
from posenc.settings.signature import parameters_of

# A larger change of float32 logits, whose variance is 1, is no rounding: kernels differ by less.
SMALLEST_EFFECT = 3e-5
# A smaller share of the largest gradient is zero, rounded in float64. A bias that is added to all scores of a
# query has such a gradient, since the softmax ignores it.
NO_GRADIENT = 1e-11
SEEDS = 8  # most models to try: a ReLU that is off has no gradient, but not with every seed


def effect(subject: Subject) -> Verdict:
    """Every setting and every trained parameter changes some number at T or 8T, or is declared inert.

    A setting may also change the number of parameters, or act only beside another choice of a second one. A
    parameter is looked at along each of its dimensions: a row that nothing reads is inert.
    """
    encoding = subject.build(0).encoding
    inert: list[str] = []
    varied = [key for key in _kinds(encoding) if key in subject.settings and _values(subject, key)]
    for key in varied:
        if not _setting_acts(subject, key):
            require(key in encoding.inert, f"encoding.{key} changes no number")
            inert.append(key)
    # Not `fresh`, which would only change values: names are all that is read here.
    model = subject.build(0)
    for name, row in inert_rows(subject).items():
        owner, name_in_owner = owner_of(model, name)
        short_name = name.removeprefix("encoding.")
        require(name_in_owner in owner.inert, f"{short_name}{row} changes no number")
        inert.append(short_name)
    count = len(parameters_of_encodings(model))
    reason = f"declared inert: {', '.join(inert)}" if inert else ""
    return Verdict("pass", f"{len(varied)} settings, {count} tensors", reason)


# --- settings


def _kinds(encoding: Encoding) -> dict[str, Any]:
    """Return the types of an encoding's settings by key, without the parts of a sum, which are encodings."""
    kinds = parameters_of(type(encoding))
    return {key: kind for key, kind in kinds.items() if kind != list[Encoding]}


def _values(subject: Subject, key: str) -> list[Any]:
    """Return other values of a setting, which may be out of range."""
    encoding = subject.build(0).encoding
    own_setting = subject.settings[key]
    value = own_setting
    if value is None:
        # null stands for a number that the encoding derives from the shape: that one is varied
        value = encoding.derived.get(key)
    candidates = other_values(value, _kinds(encoding)[key])
    return [candidate for candidate in candidates if candidate != own_setting]


def other_values(value: Any, kind: Any) -> list[Any]:
    """Return values of a setting's type, some of them other than its own."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, list):
        # Of a list of parts another order or fewer parts is a change, and both are in range.
        return [value[::-1], value[:1]]
    for option in (kind, *get_args(kind)):
        if get_origin(option) is Literal:
            return list(get_args(option))
    if isinstance(value, int):
        return [value + 1, 2 * value, value // 2, 1]
    if isinstance(value, float):
        # Small and large steps: one may be out of range, and another too small to be seen.
        return [2 * value, value / 2, value + 0.5, 8 * value, value / 8, value / 1000, 1000 * value]
    return []


def _setting_acts(subject: Subject, key: str) -> bool:
    """Tell whether another value of a setting changes a number, perhaps with another choice of a second one.

    True as well if no other value is in range.
    """
    # If no other value was in range, nothing is known of the setting, and it is not blamed.
    is_compared = False
    for choice in _choices_of_others(subject, key):
        reference = _model(subject, choice)
        if reference is None:
            continue
        for value in _values(subject, key):
            model = _model(subject, {**choice, key: value})
            if model is None:
                continue
            is_compared = True
            if differs(subject, reference, model):
                return True
    return not is_compared


def _choices_of_others(subject: Subject, key: str) -> Iterator[dict[str, Any]]:
    """Yield no change, then one change of another setting: each of the few values that it can have."""
    yield {}
    for other, kind in _kinds(subject.build(0).encoding).items():
        has_few_values = kind is bool or get_origin(kind) is Literal
        if has_few_values and other != key and other in subject.settings:
            for value in _values(subject, other):
                yield {other: value}


def _model(subject: Subject, changes: dict[str, Any]) -> Decoder | None:
    """Return a model with other settings; None where they are out of range or do not fit together."""
    try:
        return subject.fresh(encoding=changes)
    except UserError:
        return None


def differs(subject: Subject, a: Decoder, b: Decoder) -> bool:
    """Tell whether two models differ: in the sizes of their parameters, or in logits at T or 8T."""
    # First, since a pass of two models takes far longer than to compare their sizes.
    if _sizes(a) != _sizes(b):
        return True
    policies = {a.encoding.beyond, b.encoding.beyond}
    # `truncate` and `refuse` take no text beyond T, so no pass at 8T can show how they differ
    if len(policies) > 1 and policies & {"truncate", "refuse"}:
        return True
    for n in (subject.train_length, subject.longest()):
        logits_a = _logits_or_none(a, n)
        logits_b = _logits_or_none(b, n)
        if (logits_a is None) != (logits_b is None):
            return True
        if logits_a is None or logits_b is None:
            continue
        if largest_difference(logits_a, logits_b) > SMALLEST_EFFECT:
            return True
    return False


def _sizes(model: Decoder) -> dict[str, torch.Size]:
    """Return the shapes of the encoding's parameters by name."""
    return {name: parameter.shape for name, parameter in model.encoding.named_parameters()}


def _logits_or_none(model: Decoder, n: int) -> Tensor | None:
    """Return logits at n tokens; None if the encoding does not go so far."""
    try:
        return logits(model, tokens(model, n))
    except ValueError:
        return None


# --- parameters


def inert_rows(subject: Subject) -> dict[str, str]:
    """Return the parameters with a row, along one of their dimensions, that changes no logits at T or 8T.

    A row is inert if its gradient is zero with every seed.
    """
    has_gradient = _has_gradient(subject, seed=0)
    for seed in range(1, SEEDS):
        if not _first_inert_rows(has_gradient):
            break
        for name, has_gradient_too in _has_gradient(subject, seed).items():
            has_gradient[name] |= has_gradient_too
    return _first_inert_rows(has_gradient)


def _has_gradient(subject: Subject, seed: int) -> dict[str, Tensor]:
    """Return where gradients are not zero at T or at 8T, by the name of a parameter in the model.

    The parameters are those of the encoding and its options.

    They are computed in float64; each tensor has the parameter's shape, bool.
    """
    gradients: dict[str, Tensor] = {}  # the larger one of both lengths
    with Float64():
        model = subject.fresh(seed).eval()
        for n in (subject.train_length, subject.longest()):
            output = model(tokens(model, n, batch=4), model.positions(n, generator_for(0, "law")))
            # A plain sum of logits has a gradient of zero wherever logits only trade with each other.
            weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(n))
            (output * weights).sum().backward()
            for name, parameter in parameters_of_encodings(model).items():
                gradient = torch.zeros_like(parameter)
                if parameter.grad is not None:
                    gradient = parameter.grad.abs()
                # A row may act at T or beyond it alone, such as a bucket of far distances.
                gradients[name] = torch.maximum(gradients.get(name, gradient), gradient)
            model.zero_grad()
    # Relative to the largest one, since what is rounding depends on the size of all gradients.
    largest = max((gradient.max().item() for gradient in gradients.values()), default=0.0)
    return {name: gradient > NO_GRADIENT * largest for name, gradient in gradients.items()}


def _first_inert_rows(has_gradient: dict[str, Tensor]) -> dict[str, str]:
    """Return the first row without a gradient, as `[:, 3]`, of each parameter that has such a row."""
    rows: dict[str, str] = {}
    for name, has_gradient_here in has_gradient.items():
        row = _first_inert_row(has_gradient_here)
        if row is not None:
            rows[name] = row
    return rows


def _first_inert_row(has_gradient: Tensor) -> str | None:
    """Return the first row without a gradient along any dimension of a parameter; None without any."""
    for dimension in range(has_gradient.ndim):
        by_row = has_gradient
        if has_gradient.ndim > 1:
            by_row = has_gradient.movedim(dimension, 0).flatten(1).any(1)  # (rows,)
        if not by_row.all():
            row = int(by_row.int().argmin())
            return f"[{':, ' * dimension}{row}]"
    return None

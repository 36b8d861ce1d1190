"""Laws of what an encoding declares: a penalty, and options that it takes or refuses."""

from __future__ import annotations

from typing import Any

import torch

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings.attention_options import attention_options
from posenc.encodings.base import LONGEST_OF_LAWS, Encoding
from posenc.laws.subject import FAR, Subject, changed_from, logits, tokens
from posenc.laws.verdict import LawNotApplicableError, Verdict, require, require_identical
from posenc.settings.signature import parameters_of

ROUNDING = 1e-6  # of a float32 bias, as a share of it


def penalty(subject: Subject) -> Verdict:
    """If a penalty: its bias never rises with the distance.

    Queries are at T, at 8T and far out; distances are all those to 8T and some beyond.
    """
    encoding = subject.declared
    if not encoding.penalty:
        raise LawNotApplicableError("declare penalty = True if its bias falls with distance")
    # An encoding by forget gates may declare a penalty, too, which the distance alone does not decide.
    if not encoding.hooks & {"bias", "distance_bias"}:
        raise LawNotApplicableError("its penalty is made of the text, not of distances")
    model = subject.fresh().eval()
    longest = subject.train_length * LONGEST_OF_LAWS
    distances = torch.cat((torch.arange(longest + 1), 2 ** torch.arange(17)))
    fall = 0.0
    for layer in range(len(model.blocks)):
        # FAR as well: a formula may turn round at distances that no window of this size has.
        for query in (subject.train_length - 1, longest, FAR - 1):
            r = distances.clamp_max(query).unique()  # (R,), ascending
            keys = query - r.flip(0)  # the oldest key first
            with torch.no_grad():
                # One query, since a matrix of all pairs would take gigabytes at FAR.
                bias = model.effective_encoding.bias(torch.tensor([query]), keys, layer)  # (H, 1, R)
            bias = bias[:, 0].flip(-1)  # (H, R), by distance
            require(bool(bias.isfinite().all()), f"its bias at position {query} is not finite")
            # Two biases that are equal may come out in the wrong order by their last digit.
            rounding = ROUNDING * bias[:, 1:].abs()
            is_falling = bool((bias.diff(dim=-1) - rounding <= 0).all())
            require(is_falling, "its bias rises with the distance", f"{bias.diff().max():.1e}")
            fall_of_query = (bias[:, 0] - bias[:, -1]).max().item()
            fall = max(fall, fall_of_query)
    require(fall > 0, "declares a penalty, and its bias is the same at every distance")
    return Verdict("pass", f"falls by up to {fall:.3g}")


def options(subject: Subject) -> Verdict:
    """Options (per_layer, positions, all of the attention) combine with it or are refused by name."""
    accepted: list[str] = []
    declared: list[str] = []
    ruled_out: list[str] = []
    undeclared: list[str] = []
    changes: dict[str, dict[str, Any]] = {
        "per_layer": {"encoding": {"per_layer": True}},
        "randomized": {"positions": {"name": "randomized", "max": None, "dense": False}},
        "offset": {"positions": {"name": "offset", "max": None}},
    }
    values_of_types = {int: subject.train_length // 2, bool: True}
    for cls in attention_options():
        value = cls.choice if isinstance(cls.choice, str) else values_of_types[cls.choice]
        changes[cls.name] = {"attention": {cls.key: value}}
    for option, change in changes.items():
        try:
            # To build is to check: an option that does not fit is refused by the constructor.
            subject.fresh(**change)
        except UserError as error:
            text = error.text()
            names = (option, *change.get("attention", {}))
            # The user sees this text alone, so it has to say which option to take out.
            is_named = any(name in text for name in names)
            require(is_named, f"{option} is refused without being named: {text}")
            if _is_refusal_declared(subject.declared, change):
                declared.append(option)
            elif _is_ruled_out(subject.declared, option, change):
                ruled_out.append(option)
            else:
                undeclared.append(option)
            continue
        _check_with_option(subject, option, change)
        accepted.append(option)
    reasons = []
    if declared:
        reasons.append(f"refused as declared: {', '.join(declared)}")
    if ruled_out:
        # By hooks and parameters, so there is nothing to declare.
        reasons.append(f"ruled out by its code: {', '.join(ruled_out)}")
    if undeclared:
        reasons.append(f"refused, which `refuses` should declare: {', '.join(undeclared)}")
    return Verdict("pass", f"{len(accepted)} of {len(changes)} fit", "; ".join(reasons))


def _is_refusal_declared(encoding: Encoding, change: dict[str, Any]) -> bool:
    """Tell whether `refuses` or `uses_positions` of an encoding says that the option is refused."""
    (group,) = change
    if group == "positions":
        return "positions" in encoding.refuses or not encoding.uses_positions
    return any(f"{group}.{key}" in encoding.refuses for key in change[group])


def _is_ruled_out(encoding: Encoding, option: str, change: dict[str, Any]) -> bool:
    """Tell whether hooks or parameters of an encoding rule the option out, so that nobody need declare it."""
    if "encoding" in change:
        return option not in parameters_of(type(encoding))
    return any(cls.misfit(encoding) for cls in attention_options() if cls.name == option)


def _check_with_option(subject: Subject, option: str, change: dict[str, Any]) -> None:
    """Raise ViolationError unless logits are finite and causal with an option, after a pass in training."""
    model = subject.fresh(**change)
    length = subject.train_length
    # Offset positions are drawn in training alone, so both modes are run.
    model.train()
    model(tokens(model, length), model.positions(length, generator_for(0, "law")))
    n = subject.longest()
    ids = tokens(model, n)
    original = logits(model, ids)
    changed = logits(model, changed_from(ids, n // 2, model))
    require(bool(original.isfinite().all()), f"with {option}: not finite at {n} tokens")
    past = slice(n // 2)
    reason = f"with {option}: the future changes logits of the past"
    require_identical(original[:, past], changed[:, past], reason)

"""Laws of trained parameters: their number, initial values and gradients, and how they are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, owner_of
from posenc.encodings.initial_values import construct_again, parts_of_construction, same_values
from posenc.laws.subject import (
    Subject,
    encoding_and_options,
    logits,
    parameters_of_encodings,
    tokens,
    with_numbers,
)
from posenc.laws.verdict import LawNotApplicableError, Verdict, ViolationError, require, require_identical
from posenc.model.decoder import Decoder, count_parameters

REGISTRIES = ("_parameters", "_buffers")  # attributes in which torch keeps the tensors that it moves


def gradient(subject: Subject) -> Verdict:
    """A finite gradient reaches every parameter, in fp32 and bf16."""
    for is_bf16 in (False, True):
        model = subject.fresh().train()
        precision = " in bf16" if is_bf16 else ""
        pos = model.positions(subject.train_length, generator_for(0, "law"))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
            output = model(tokens(model, subject.train_length, batch=4), pos)
        # Not the sum of the logits, whose gradient could be zero by symmetry.
        output.float().logsumexp(-1).square().sum().backward()
        names_of_encodings = parameters_of_encodings(model)
        for name, parameter in with_numbers(model).items():
            # a parameter of an encoding with a row for each layer: every layer has to use its own
            has_rows = parameter.ndim > 1 and parameter.shape[0] == len(model.blocks)
            is_by_layer = has_rows and name in names_of_encodings
            _check_gradient(name, parameter, is_by_layer, precision)
    total = len(list(model.parameters()))
    total_of_encoding = len(list(model.encoding.parameters()))
    return Verdict("pass", f"{total} tensors, {total_of_encoding} of its own")


def _check_gradient(name: str, parameter: nn.Parameter, is_by_layer: bool, precision: str) -> None:
    """Raise ViolationError unless the gradient is finite, and not zero as a whole or in any layer."""
    require(parameter.grad is not None, f"no gradient reaches {name}{precision}")
    assert parameter.grad is not None
    require(bool(parameter.grad.isfinite().all()), f"the gradient of {name} is not finite{precision}")
    if not is_by_layer:
        require(bool(parameter.grad.any()), f"the gradient of {name} is zero{precision}")
        return
    for layer, layer_gradient in enumerate(parameter.grad):
        require(bool(layer_gradient.any()), f"the gradient of {name}[{layer}] is zero{precision}")


def count(subject: Subject) -> Verdict:
    """The declared number of parameters is the real one."""
    model = subject.fresh()
    encoding = model.encoding
    declared = encoding.learned_parameters()
    if declared is None:
        raise LawNotApplicableError("declare learned_parameters(), how many numbers it learns")
    real = count_parameters(model).encoding
    figure = f"{declared:,} declared, {real:,} there"
    require(declared == real, "learned_parameters is not what it has", figure)
    for option in encoding_and_options(model)[1:]:
        declared_by_option = option.learned_parameters() or 0  # an option without parameters declares nothing
        real_of_option = sum(parameter.numel() for parameter in option.parameters())
        figure = f"{declared_by_option:,} declared, {real_of_option:,} there"
        reason = f"learned_parameters of {option.name} is not what it has"
        require(declared_by_option == real_of_option, reason, figure)
    return Verdict("pass", f"{real:,}", f"learned = {encoding.learned or 'as its parts'}")


def seeds(subject: Subject) -> Verdict:
    """Initial values follow from the seed and the parameter's name, whatever else is drawn."""
    for seed in (0, 1):
        model = subject.build(seed)
        for name, parameter in parameters_of_encodings(model).items():
            short_name = name.removeprefix("encoding.")
            require(bool(parameter.isfinite().all()), f"nothing sets all values of {short_name}")
        with torch.random.fork_rng():
            torch.manual_seed(seed + 1)  # the global generator must not matter
            again = dict(subject.build(seed).named_parameters())
        for name, parameter in with_numbers(model).items():
            require_identical(parameter, again[name], f"{name} starts elsewhere the second time")
    _check_generators(subject.build(0))
    return Verdict("pass", "two seeds, bit for bit")


class OtherGenerators(TorchFunctionMode):
    """Note whether torch is asked inside for draws from another generator than the given one."""

    def __init__(self, given: torch.Generator) -> None:
        super().__init__()
        self.given = given
        self.has_seen_another = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        generator = (kwargs or {}).get("generator")
        self.has_seen_another |= generator is not None and generator is not self.given
        return func(*args, **(kwargs or {}))


def _check_generators(model: Decoder) -> None:
    """Raise ViolationError if `initialize` draws from a generator of its own: all seeds would start alike."""
    for name, parameter in parameters_of_encodings(model).items():
        owner, name_in_owner = owner_of(model, name)
        generator = torch.Generator().manual_seed(0)
        # nan stands for what `__init__` left empty, so `initialize` has to draw all of it.
        with OtherGenerators(generator) as mode, torch.no_grad():
            owner.initialize(name_in_owner, torch.full_like(parameter, torch.nan), generator)
        if mode.has_seen_another:
            raise ViolationError(f"{name_in_owner} is drawn by a generator of its own", "whatever the seed")


def initial(subject: Subject) -> Verdict:
    """Initial values are those that the class sets.

    What `__init__` sets without drawing it must be what training starts from. Where `initialize` is to
    decide, `__init__` leaves the parameter as `torch.empty`.
    """
    total = 0
    set_by_class = 0
    for encoding in encoding_and_options(subject.build(0)):
        total += sum(parameter.numel() for parameter in encoding.parameters())
        set_by_class += _check_initial(encoding)
    if not total:
        return Verdict("pass", "no parameters")
    return Verdict("pass", f"{set_by_class:,} of {total:,} numbers are set by __init__ without a draw")


def _check_initial(encoding: Encoding) -> int:
    """Return how many numbers `__init__` sets without a draw. Raises ViolationError if one is replaced."""
    parameters = dict(encoding.named_parameters())
    set_by_class = 0
    for name, fixed in fixed_values(encoding).items():
        parameter = parameters[name].detach()
        is_lost = fixed.is_fixed & ~same_values(parameter, fixed.value)
        if is_lost.any():
            figure = f"{fixed.value[is_lost][0]:.3g} becomes {parameter[is_lost][0]:.3g}"
            raise ViolationError(f"__init__ sets {name}, and initialize replaces it", figure)
        set_by_class += int(fixed.is_fixed.sum())
    return set_by_class


@dataclass(frozen=True)
class FixedValues:
    """What `__init__` gives a parameter, and where these numbers are neither drawn nor left unset."""

    value: Tensor
    is_fixed: Tensor  # of the parameter's shape, bool


def fixed_values(encoding: Encoding) -> dict[str, FixedValues]:
    """Return the values that `__init__` gives each parameter, by the parameter's name.

    The encoding is constructed twice with other draws: what differs was drawn. Unset numbers are nan.
    """
    # What a constructor draws cannot be told from what it sets by looking at one object.
    first, _ = construct_again(encoding, lambda draw: draw)
    second, _ = construct_again(encoding, lambda draw: draw + 1)
    parameters_of_second = dict(second.named_parameters())
    parts = parts_of_construction(encoding, first)
    prefixes_of_parts = tuple(f"{path}." for path in parts)
    values: dict[str, FixedValues] = {}
    for name, parameter in first.named_parameters():
        if not name.startswith(prefixes_of_parts):
            value = parameter.detach().float()
            value_in_second = parameters_of_second[name].detach().float()
            values[name] = FixedValues(value, same_values(value, value_in_second) & ~value.isnan())
    for path, part in parts.items():
        values |= {f"{path}.{name}": fixed for name, fixed in fixed_values(part).items()}
    return values


def load(subject: Subject) -> Verdict:
    """Weights alone make the model again, at T and at 8T."""
    model = subject.fresh()
    windows = sorted({subject.train_length, subject.longest()})
    texts = [tokens(model, n) for n in windows]
    expected = [logits(model, ids) for ids in texts]
    buffers = set(model.state_dict()) - {name for name, _ in model.named_parameters()}
    reason = f"saved buffers tie weights to their length: {', '.join(sorted(buffers))}"
    require(not buffers, f"{reason} (persistent=False keeps them out)")
    # The same seed, as in a resumed run: numbers that are drawn and never trained come from it.
    loaded = subject.fresh()
    # That seed gives the same weights as well, so they are changed: loading must be what brings them back.
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.mul_(0.5).add_(0.1)
    # A pass with the changed weights: what an encoding keeps of them would be out of date after loading.
    for ids in texts:
        logits(loaded, ids)
    # safetensors refuses a tensor that is not contiguous
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    # By way of safetensors, as checkpoints are stored: shared tensors and buffers show up there.
    loaded.load_state_dict(load_bytes(save_bytes(weights)), strict=True)
    for ids, logits_before in zip(texts, expected, strict=True):
        reason = f"differ: logits at {ids.shape[1]} tokens, before and after loading"
        require_identical(logits(loaded, ids), logits_before, reason)
    for encoding in encoding_and_options(subject.fresh()):
        _check_devices(encoding)
    return Verdict("pass", f"bit for bit at {' and '.join(map(str, windows))} tokens")


def _check_devices(encoding: Encoding) -> None:
    """Raise ViolationError for tensors that would stay on the CPU when the model moves to a GPU."""
    unregistered: list[str] = []
    for part in encoding.modules():
        for name, value in vars(part).items():
            # A tensor in a list moves no more than one in an attribute, even if it is an nn.Parameter.
            holds_tensors = any(isinstance(leaf, Tensor) for leaf in tree_iter(value))
            if holds_tensors and name not in REGISTRIES:
                unregistered.append(name)
    names = ", ".join(unregistered)
    require(not unregistered, f"tensors that stay on the CPU: {names} (register_buffer moves them along)")

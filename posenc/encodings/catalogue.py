"""Describe encodings from what their classes declare, for `posenc encodings` and docs/encodings.md."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.encodings.base import Encoding
from posenc.encodings.building import default_parameters
from posenc.encodings.registry import FILE, encoding_class, file_encoding
from posenc.settings.base import without_name
from posenc.settings.signature import defaults_of, parameters_of

# What `acts_on` may be, in the order of a forward pass, with its meaning.
ACTS_ON = {
    "nothing": "nothing: order comes from the causal mask",
    "embed": "embed: a vector for each position enters the residual stream",
    "rotate": "rotate: queries and keys made to depend on their positions",
    "bias": "bias: added to the scores, by distance or positions alone",
    "scores": "scores: what is added depends on queries, keys or the text",
    "weights": "weights: another normalisation than the softmax",
    "mask": "mask: which keys are seen",
    "several": "several: several places, or made of several encodings",
}


@dataclass(frozen=True)
class EncodingEntry:
    """What a class declares of an encoding, as `posenc encodings NAME --json` prints it."""

    name: str
    acts_on: str
    formula: str
    past_training: str  # what happens past the training length
    paper: str
    revision: int
    prefix_stable: bool  # a longer text leaves the scores of its prefix alone
    relative: bool  # scores do not change when all positions shift alike
    decouples: bool  # it can be used with latent attention, on the rotary part of each head alone
    learned_parameters: str | None  # a formula in T, d, D, H, L; None: not declared
    parameters: dict[str, Any]  # settings with their defaults
    without_default: list[str]  # settings that must be given
    refuses: dict[str, str]  # settings that cannot be combined with it, and why
    description: str  # the docstring of its module


def describe_encoding(name: str, plugins: Sequence[str] = ()) -> EncodingEntry:
    """Return what the class of an encoding declares. Raises UserError.

    `name` is a registered name, or a file: FILE.py or FILE.py:CLASS.
    """
    file = FILE.fullmatch(name)
    if file is None:
        # a registered name, with the defaults of its YAML file
        return _entry(encoding_class(name, plugins), default_parameters(name))
    # a file, with the defaults of the class; a YAML file beside it takes precedence
    path, class_name = file.groups()
    settings = file_encoding(path, class_name)
    cls = encoding_class(settings["name"], [*plugins, path])
    return _entry(cls, {**defaults_of(cls), **without_name(settings)})


def _entry(cls: type[Encoding], defaults: Mapping[str, Any]) -> EncodingEntry:
    name = cls.name
    return EncodingEntry(
        name=name,
        acts_on=cls.acts_on,
        formula=cls.formula,
        past_training=cls.past_training,
        paper=cls.paper,
        revision=cls.revision,
        prefix_stable=cls.prefix_stable,
        relative=cls.relative,
        decouples=cls.decouples,
        learned_parameters=cls.learned,
        parameters=dict(defaults),
        without_default=sorted(set(parameters_of(cls)) - set(defaults)),
        refuses=dict(cls.refuses),
        description=(sys.modules[cls.__module__].__doc__ or "").strip(),
    )

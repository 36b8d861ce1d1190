"""The laws look at the parameters of the attention's options, as they do at an encoding's own."""

import pytest
import torch
from subjects import ATTENTION, named, subject

from posenc.encodings.attention_options import attention_options
from posenc.encodings.attention_options.sink import Sink
from posenc.encodings.building import default_parameters
from posenc.laws import Subject, judge
from posenc.model.decoder import Decoder, initialize
from posenc.running.law_check import SHORT

LAWS_OF_PARAMETERS = [
    "count",
    "effect",
    *(pytest.param(law, marks=pytest.mark.slow) for law in ("gradient", "seeds", "initial")),
]
NAMED_CHOICES = [
    (option.key, option.choice) for option in attention_options() if isinstance(option.choice, str)
]


@pytest.mark.parametrize("law", LAWS_OF_PARAMETERS)
@pytest.mark.parametrize(("key", "choice"), NAMED_CHOICES, ids=str)
def test_parameters_of_an_option_obey_the_laws(key, choice, law):
    encoding = {"name": "nope", **default_parameters("nope")}
    with_option = subject(encoding, attention={**ATTENTION, key: choice})
    verdict = judge(law, with_option)
    assert verdict.status == "pass", verdict


class OneLayerOnly(Sink):
    """Every layer takes the sink of the first one."""

    def sink(self, layer):
        return super().sink(0)


class CountsTwice(Sink):
    """It declares more parameters than it has."""

    def learned_parameters(self):
        return 2 * super().learned_parameters()


class StaysBehind(Sink):
    """It has a constant that stays on the CPU."""

    def __init__(self, shape):
        super().__init__(shape)
        self.constant = torch.ones(shape.n_heads)


def with_broken_option(option_type):
    """NoPE beside an option, at the size of the laws."""
    plain = named("nope")

    def build(seed, **changes):
        model = plain.build(seed, **changes)
        option = option_type(model.encoding.shape)
        with_option = Decoder(model.shape, model.vocab_size, model.encoding, (option,))
        initialize(with_option, seed)
        return with_option

    return Subject("nope", build, SHORT)


@pytest.mark.parametrize(
    ("law", "option_type", "says"),
    [
        ("gradient", OneLayerOnly, "options.0.s[1] is zero"),
        ("effect", OneLayerOnly, "options.0.s[1] changes no number"),
        ("count", CountsTwice, "learned_parameters of sink is not what it has"),
        ("load", StaysBehind, "tensors that stay on the CPU: constant"),
    ],
)
def test_an_option_that_breaks_a_law_is_named(law, option_type, says):
    verdict = judge(law, with_broken_option(option_type))
    assert verdict.status == "fail"
    assert says in verdict.reason

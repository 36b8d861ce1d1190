"""Subjects at the size of `posenc check`: shipped encodings by name, and classes that are in no catalogue."""

import functools

from posenc.encodings.base import Shape
from posenc.encodings.options import build_options
from posenc.encodings.positions import position_limits
from posenc.encodings.registry import default_parameters, resolve_encoding
from posenc.laws import Subject, judge
from posenc.model.decoder import Decoder, initialize
from posenc.running.law_check import SHORT, SMALL, VOCABULARY, subject_of
from posenc.settings.signature import check_arguments

ATTENTION = {"name": "mha", "window": None, "scale": "none"}
SETTINGS = {"attention": ATTENTION, "positions": {"name": "contiguous"}, "context_length": SHORT}
SETTINGS |= {"seed": 0, "plugins": []}


@functools.cache
def named(name):
    """A shipped encoding with the parameters of its YAML."""
    return subject_of({**SETTINGS, "encoding": resolve_encoding({"name": name, **default_parameters(name)})})


@functools.cache
def verdict_of(name, law):
    return judge(law, named(name))


def of_class(cls):
    """A class without parameters, beside the options that the laws ask for."""

    def build(seed, **changes):
        settings = {**SETTINGS, "encoding": {}, **changes}
        length, positions = settings["context_length"], settings["positions"]
        limit, _ = position_limits(positions, length)
        shape = Shape(SMALL.d_model, SMALL.n_heads, SMALL.head_dim, SMALL.n_layers, length, limit)
        encoding = cls(shape, **check_arguments(cls, settings["encoding"], "encoding"))
        attention = {**ATTENTION, **settings["attention"]}
        options = build_options(shape, encoding, positions=positions, attention=attention)
        model = Decoder(SMALL, VOCABULARY, encoding, options)
        initialize(model, seed)
        return model

    return Subject(cls.__name__, build, SHORT)

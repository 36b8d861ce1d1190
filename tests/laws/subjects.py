"""Subjects at the size of `posenc check`: shipped encodings by name, and classes that are in no catalogue."""

import functools

from composed import train_settings

from posenc.encodings.base import Shape
from posenc.encodings.building import default_parameters
from posenc.encodings.options import build_options
from posenc.encodings.positions import position_limits
from posenc.laws import Subject, judge
from posenc.model.decoder import Decoder, initialize
from posenc.running.law_check import SHORT, SMALL, VOCABULARY, changed, subject_of
from posenc.running.model_parts import check_parts
from posenc.settings.signature import check_arguments, defaults_of

ATTENTION = {"name": "mha", "window": None, "scale": "none"}
CONTIGUOUS = {"name": "contiguous"}


@functools.cache
def default_settings():
    """Checked settings of `posenc train` at the length of the laws."""
    return train_settings(f"context_length={SHORT}")


def subject(encoding, **groups):
    """An encoding's settings, beside other choices of attention or positions, as a subject."""
    return subject_of(check_parts(changed(default_settings(), 0, {"encoding": encoding, **groups})))


@functools.cache
def named(name):
    """A shipped encoding with the parameters of its YAML."""
    return subject({"name": name, **default_parameters(name)})


@functools.cache
def verdict_of(name, law):
    return judge(law, named(name))


def of_class(cls):
    """A class with the defaults of its parameters, beside the options that the laws ask for."""
    defaults = defaults_of(cls)

    def build(seed, **changes):
        settings = {
            "attention": {},
            "positions": CONTIGUOUS,
            "context_length": SHORT,
            "encoding": {},
            **changes,
        }
        length, positions = settings["context_length"], settings["positions"]
        limit, _ = position_limits(positions, length)
        shape = Shape(SMALL.d_model, SMALL.n_heads, SMALL.head_dim, SMALL.n_layers, length, limit)
        parameters = check_arguments(cls, {**defaults, **settings["encoding"]}, "encoding")
        encoding = cls(shape, **parameters)
        attention = {**ATTENTION, **settings["attention"]}
        options = build_options(shape, encoding, positions=positions, attention=attention)
        model = Decoder(SMALL, VOCABULARY, encoding, options)
        initialize(model, seed)
        return model

    return Subject(cls.__name__, build, SHORT, defaults)

"""Every YAML of conf/encoding and the class behind it; what its numbers obey is in tests/laws."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from posenc.core.paths import conf_dir
from posenc.core.signature import parameters_of
from posenc.encodings import build_encoding, encoding_class, list_encodings, resolve_encoding
from posenc.encodings.base import Encoding

PATHS = sorted((conf_dir() / "encoding").glob("*.yaml"))
NAMES = [path.stem for path in PATHS]
every_encoding = pytest.mark.parametrize("name", NAMES)


def settings(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def built(name: str) -> Encoding:
    return build_encoding(name, d_model=32, n_heads=4, head_dim=8, n_layers=2, train_length=32)


def test_there_are_encodings() -> None:
    assert set(NAMES) >= {"nope", "learned", "sinusoidal", "rope", "alibi", "t5"}
    assert list_encodings() == NAMES


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_yaml_file_module_and_class_have_one_name(path: Path) -> None:
    assert settings(path)["name"] == path.stem
    cls = encoding_class(path.stem)
    assert cls.name == path.stem
    assert cls.__module__ == f"posenc.encodings.{path.stem}"
    assert encoding_class(resolve_encoding(settings(path))["name"]) is cls


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_yaml_and_signature_have_the_same_parameters(path: Path) -> None:
    cls = encoding_class(path.stem)
    assert set(settings(path)) - {"name"} == set(parameters_of(cls))
    for name, parameter in inspect.signature(cls).parameters.items():
        if name != "shape":
            assert parameter.default is inspect.Parameter.empty, f"{name}: the YAML is the default's home"
            assert parameter.annotation is not inspect.Parameter.empty


@every_encoding
def test_says_what_it_is(name: str) -> None:
    cls = encoding_class(name)
    for attribute in ("paper", "formula", "past_training"):
        text = getattr(cls, attribute)
        assert isinstance(text, str) and text and "\n" not in text
    assert cls.acts_on in {"embed", "rotate", "bias", "mask", "scores", "weights", "several", "nothing"}
    assert (cls.acts_on == "nothing") == (not built(name).hooks)
    assert inspect.getmodule(cls).__doc__
    assert cls.revision >= 1
    assert all(isinstance(text, str) for text in built(name).warnings())


@every_encoding
def test_what_is_null_follows_from_the_shape_and_is_told(name: str) -> None:
    nulls = {
        key for key, value in settings(conf_dir() / "encoding" / f"{name}.yaml").items() if value is None
    }
    derived = built(name).derived
    assert set(derived) == nulls and None not in derived.values()


@every_encoding
def test_a_misspelt_parameter_is_refused(name: str) -> None:
    cls: type[Encoding] = encoding_class(name)
    with pytest.raises(Exception, match=r"encoding\.no_such_parameter"):
        resolve_encoding({"name": cls.name, "no_such_parameter": 1})

"""What holds for every YAML of conf/extend, and for each of them with every encoding."""

import copy
import inspect
from functools import partial

import pytest
import torch
import yaml
from extending import FACTORS, LONG, T, extension_of, logits, model_of, outline_of

from posenc.core.paths import conf_dir
from posenc.encodings import list_encodings
from posenc.evaluation.extensions import NotForThisEncodingError, build_extension, extensions, resolve_extend
from posenc.settings.signature import parameters_of

PATHS = sorted((conf_dir() / "extend").glob("*.yaml"))
NAMES = [path.stem for path in PATHS if path.stem != "none"]
TOKENS = list(range(13)) * 3
every_extension = pytest.mark.parametrize("name", NAMES)
slow = partial(pytest.param, marks=pytest.mark.slow)
ENCODINGS = [name if name in ("rope", "rnope_swa", "t5", "sum") else slow(name) for name in list_encodings()]
NEEDED = {"longrope": {"factors": FACTORS}}  # what cannot have a default


def on_rope(name):
    return extension_of(model_of("rope"), name, **NEEDED.get(name, {}))


# --- The YAML of each extension
def settings_of(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_every_yaml_is_an_extension():
    assert list(extensions()) == NAMES


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_yaml_is_named_as_its_extension_and_complete(path):
    settings = settings_of(path)
    assert settings["name"] == path.stem
    assert resolve_extend(settings) == {
        knob: settings[knob] for knob in settings if not came_later(settings, knob)
    }


def came_later(settings, knob):
    """Tell whether a knob came after the first records, and is as they were."""
    cls = extensions().get(settings["name"])
    return cls is not None and knob in cls.later and settings[knob] == cls.later[knob]


@every_extension
def test_knobs_that_came_later_change_nothing_by_default(name):
    """So that stored cells and runs keep their identity."""
    cls = extensions()[name]
    settings = settings_of(conf_dir() / "extend" / f"{name}.yaml")
    assert all(settings[knob] == value for knob, value in cls.later.items())
    assert not set(cls.later) & set(on_rope(name).settings)


@every_extension
def test_a_yaml_has_the_parameters_of_the_class(name):
    settings = settings_of(conf_dir() / "extend" / f"{name}.yaml")
    assert set(settings) - {"name"} == set(parameters_of(extensions()[name]))


@every_extension
def test_the_class_has_no_defaults(name):
    """The YAML is their only home."""
    for parameter in inspect.signature(extensions()[name]).parameters.values():
        assert parameter.default is parameter.empty


@every_extension
def test_published_bounds_of_the_ramp_are_in_the_yaml(name):
    """At the small T of tests they change nothing, so that no other test would notice."""
    settings = settings_of(conf_dir() / "extend" / f"{name}.yaml")
    assert settings.get("beta_slow", 1.0) == 1.0
    assert settings.get("beta_fast", 32.0) == 32.0


# --- What an extension does to a model
# `scale` is a number, `drop` removes something, `string` moves far distances within T.
ACT_AT_EVERY_WINDOW = ("scale", "drop", "string")


@pytest.mark.parametrize("window", [1, T // 2, T])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ACT_AT_EVERY_WINDOW])
def test_up_to_the_training_length_nothing_changes(name, window):
    extension = on_rope(name)
    assert extension.effective_encoding(window) is extension.model.effective_encoding


@every_extension
def test_what_changes_nothing_at_a_window_changes_nothing_at_a_shorter_one(name):
    """So a record may be taken over from the model as trained, if a protocol passes shorter windows too."""
    extension = on_rope(name)
    windows = [1, 2, T // 2, T - 1, T, T + 1, 2 * T, LONG]
    acts = [extension.effective_encoding(w) is not extension.model.effective_encoding for w in windows]
    assert acts == sorted(acts)


@pytest.mark.parametrize("name", ACT_AT_EVERY_WINDOW)
def test_some_extensions_act_at_the_training_length_too(name):
    extension = on_rope(name)
    assert extension.effective_encoding(T) is not extension.model.effective_encoding


@every_extension
def test_beyond_the_training_length_it_changes_finite_logits(name):
    extension = on_rope(name)
    plain = logits(extension.model, TOKENS[:LONG])
    extended = logits(extension.model, TOKENS[:LONG], extension.effective_encoding(LONG))
    assert extended.isfinite().all()
    assert (extended - plain).abs().max() > 1e-2


@every_extension
def test_an_extension_leaves_the_model_as_it_is(name):
    extension = on_rope(name)
    model = extension.model
    weights = copy.deepcopy(model.state_dict())
    plain = logits(model, TOKENS[:LONG])
    logits(model, TOKENS[:LONG], extension.effective_encoding(LONG))
    assert torch.equal(logits(model, TOKENS[:LONG]), plain)
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)


@every_extension
def test_an_extension_has_no_parameters_but_those_of_the_model(name):
    extension = on_rope(name)
    of_model = {id(parameter) for parameter in extension.model.parameters()}
    acting = extension.effective_encoding(LONG)
    assert {id(parameter) for parameter in acting.parameters()} <= of_model


# --- With every encoding
def needed_for(name, encoding):
    """Return the knobs without a default; `scale_invariant` has other pairs, which no list here fits."""
    return {} if encoding == "scale_invariant" else NEEDED.get(name, {})


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_with_every_encoding_it_is_refused_with_a_reason_or_gives_numbers(encoding):
    model = model_of(encoding)
    outline = outline_of(encoding)
    for name in NAMES:
        knobs = needed_for(name, encoding)
        try:
            extension = extension_of(model, name, **knobs)
        except NotForThisEncodingError as error:
            assert error.key == "extend"
            assert error.value == name
            assert f"encoding={encoding}: " in error.problem
            with pytest.raises(NotForThisEncodingError):
                build_extension({"name": name, **knobs}, outline)
        else:
            assert build_extension({"name": name, **knobs}, outline) is not None
            numbers = logits(model, TOKENS[: 2 * T], extension.effective_encoding(2 * T))
            assert numbers.isfinite().all()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_window_applies_to_every_encoding(encoding):
    assert extension_of(model_of(encoding), "window") is not None

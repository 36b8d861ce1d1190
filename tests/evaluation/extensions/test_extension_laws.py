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


def test_every_yaml_is_an_extension_with_its_knobs():
    assert list(extensions()) == NAMES
    for path in PATHS:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert settings["name"] == path.stem and resolve_extend(settings) == settings
        if path.stem != "none":
            cls = extensions()[path.stem]
            assert set(settings) - {"name"} == set(parameters_of(cls))
            parameters = inspect.signature(cls).parameters.values()
            assert all(one.default is one.empty for one in parameters), "the YAML is the default's home"
        published = {"beta_slow": 1.0, "beta_fast": 32.0}  # at the small T of tests they change nothing
        assert {key: settings[key] for key in published if key in settings}.items() <= published.items()


@every_extension
def test_up_to_the_training_length_nothing_changes(name):
    extension = on_rope(name)
    if name in ("scale", "drop", "string"):  # at every window: a number, what is gone, far distances within T
        assert extension.effective_encoding(T) is not extension.model.effective_encoding
        return
    for window in (1, T // 2, T):
        assert extension.effective_encoding(window) is extension.model.effective_encoding


@every_extension
def test_beyond_it_changes_finite_logits_and_never_the_model(name):
    extension = on_rope(name)
    model = extension.model
    before, plain = copy.deepcopy(model.state_dict()), logits(model, TOKENS[:LONG])
    acting = extension.effective_encoding(LONG)
    extended = logits(model, TOKENS[:LONG], acting)
    assert extended.isfinite().all() and (extended - plain).abs().max() > 1e-2
    assert torch.equal(logits(model, TOKENS[:LONG]), plain)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert {id(one) for one in acting.parameters()} <= {id(one) for one in model.parameters()}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_with_every_encoding_it_is_refused_with_a_reason_or_gives_numbers(encoding):
    model, outline, applied = model_of(encoding), outline_of(encoding), []
    for name in NAMES:
        needed = {} if encoding == "scale_invariant" else NEEDED.get(name, {})  # it has other pairs
        try:
            extension = extension_of(model, name, **needed)
        except NotForThisEncodingError as error:
            assert error.key == "extend" and error.value == name
            assert f"encoding={encoding}: " in error.problem
            with pytest.raises(NotForThisEncodingError):
                build_extension({"name": name, **needed}, outline)
            continue
        applied.append(name)
        assert build_extension({"name": name, **needed}, outline) is not None
        assert logits(model, TOKENS[: 2 * T], extension.effective_encoding(2 * T)).isfinite().all()
    assert "window" in applied

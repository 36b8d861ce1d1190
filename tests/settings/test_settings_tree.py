"""The tree of settings: marks, bounds, and what is stored."""

import copy

import pytest
import yaml
from pydantic import ValidationError

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.settings.errors import user_error
from posenc.settings.numbers import LARGEST_WHOLE, as_written
from posenc.settings.stored import MOST_VALUES, StoredSettingsError, plain_yaml, read_settings
from posenc.settings.tree import EvalCommandSettings, RunSettings, SubjectSettings

PLANT = {"share": 0.5, "pairs": 2, "cue": 1, "alphabet": 8, "weight": 1.0}


@pytest.fixture(scope="module")
def composed():
    """Plain settings of `posenc train`, as Hydra composes them."""
    plain = compose_jobs("train", parse([])).jobs[0].settings.model_dump()
    return {key: value for key, value in plain.items() if key != "schema_version"}


def changed(composed, key, value):
    """Settings with another value at a dotted key."""
    tree = copy.deepcopy(composed)
    *groups, name = key.split(".")
    group = tree
    for part in groups:
        group = group[part]
    group[name] = value
    return tree


def refusal(composed, key, value) -> UserError:
    with pytest.raises(ValidationError) as caught:
        RunSettings.model_validate(changed(composed, key, value))
    return user_error(caught.value, RunSettings)


DEFINING = [
    ("encoding.base", 500.0),
    ("attention.window", 16),
    ("positions.name", "offset"),
    ("model.d_model", 256),
    ("optim.weight_decay", 0.2),
    ("train.tokens", 5e6),
    ("train.length_schedule", [[0.5, 32], [0.5, 64]]),
    ("train.precision", "fp32"),
    ("context_length", 128),
    ("tokenizer.name", "bpe"),
    ("data.plant", PLANT),
    ("seed", 1),
]
FREE = [
    ("device", "cuda"),
    ("name", "mine"),
    ("train.compile", True),
    ("train.log_every", 7),
    ("train.validate_every", None),
    ("eval.lengths", ["1x"]),
    ("tracking.name", "wandb"),
    ("model.name", "other"),
    ("data.package", "elsewhere"),
]


@pytest.mark.parametrize(("key", "value"), DEFINING)
def test_a_defining_setting_is_hashed(composed, key, value):
    other = RunSettings.model_validate(changed(composed, key, value))
    assert other.hashed_settings() != RunSettings.model_validate(composed).hashed_settings()


@pytest.mark.parametrize(("key", "value"), FREE)
def test_a_free_setting_is_not_hashed(composed, key, value):
    other = RunSettings.model_validate(changed(composed, key, value))
    assert other.hashed_settings() == RunSettings.model_validate(composed).hashed_settings()


@pytest.mark.parametrize("key", ["seed", "context_length", "model.d_model", "train.tokens"])
def test_neither_seed_nor_size_is_part_of_a_row(composed, key):
    assert key not in RunSettings.model_validate(composed).row()


def test_size_names_the_corpus(composed):
    assert RunSettings.model_validate(composed).sizes()["data.name"] == "sympy"


def test_a_place_is_no_part_of_a_tokenizer(composed):
    tokenizer = {"name": "hf", "path": "here/tokenizer.json", "revision": "main"}
    settings = RunSettings.model_validate({**composed, "tokenizer": tokenizer})
    assert settings.hashed_settings()["tokenizer"] == {"name": "hf", "revision": "main"}


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("train.lr", -1, "out of range"),
        ("train.lr", "tunde", "did you mean: tuned"),
        ("train.lr", True, "wrong type"),
        ("train.lr", float("nan"), "out of range"),
        ("train.tokens", 2.5, "not a whole number"),
        ("train.tokens", 1e30, "=1e30: too large"),
        ("train.tokens", 10**400, "a number of 401 digits: too large"),
        ("train.tokens", "4e6", r"train.tokens=4e6: wrong type \(str\)"),
        ("seed", 1e30, f"allowed: up to {LARGEST_WHOLE}"),
        ("model.d_model", 1e30, "allowed: a whole number from 1 to 1000000"),
        ("train.compile", 1, "wrong type"),
        ("train.cuda_graph", "maybe", "train.cuda_graph=maybe"),
        ("train.precision", "fp16", "did you mean: bf16"),
        ("train.length_schedule", [[0.5, 8], [2, 16]], r"\[1\]\[0\]=2: out of range"),
        ("train.foo", 3, "there is no such setting"),
        ("context_length", 1, "too small"),
        ("model.d_model", None, "must be given"),
        ("sweep.jobs", 0, "too small"),
        ("data.plant", {**PLANT, "share": 2}, "data.plant.share=2: out of range"),
        ("eval.split", "tset", "did you mean: test"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(composed, key, value, problem):
    error = refusal(composed, key, value)
    assert error.key.startswith(key)
    with pytest.raises(UserError, match=problem):
        raise error


def test_a_word_is_suggested_before_what_is_allowed(composed):
    _, *hints = refusal(composed, "train.precision", "fp16").text().splitlines()
    assert hints == ["  did you mean: bf16", "  allowed: auto, fp32, bf16"]


def test_whole_numbers_may_be_written_with_an_exponent(composed):
    settings = RunSettings.model_validate(changed(composed, "train.tokens", 4e6))
    assert repr(settings.train.tokens) == "4000000"


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (1e3, "1000"), (2.5, "2.5"), (20261127093015123, "20261127093015123"), ("a", "a")],
)
def test_a_name_is_what_was_written(composed, value, text):
    assert RunSettings.model_validate(changed(composed, "name", value)).name == text


def test_what_posenc_fills_in_is_not_offered_to_users(composed):
    assert "tuned" not in refusal(composed, "train.tund", 1).allowed


def test_settings_never_change(composed):
    settings = RunSettings.model_validate(composed)
    with pytest.raises(ValidationError):
        settings.seed = 1


def test_stored_settings_come_back_equal(composed):
    settings = RunSettings.model_validate(changed(composed, "train.length_schedule", [[0.5, 32], [0.5, 64]]))
    assert read_settings(yaml.safe_dump(settings.plain())) == settings.with_changes(sweep=None)


def test_a_given_model_has_no_training(composed):
    names = ("encoding", "data", "tokenizer", "context_length", "eval", "seed", "experiment_name")
    stored = {"schema_version": 2, **{name: composed[name] for name in names}}
    assert isinstance(read_settings(yaml.safe_dump(stored)), SubjectSettings)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema_version": 1}, "schema 1, which the posenc that wrote it"),
        ({"schema_version": 3}, "schema 3, which a newer posenc reads"),
        ({"schema_version": 0}, "schema 0, which no posenc writes"),
        ({"schema_version": "two"}, "schema 'two', which no posenc writes"),
        ({"seed": "zero"}, "config.yaml: seed"),
    ],
)
def test_a_config_that_is_not_ours_is_refused(composed, change, problem):
    stored = {**RunSettings.model_validate(composed).plain(), **change}
    with pytest.raises(StoredSettingsError, match=problem):
        read_settings(yaml.safe_dump(stored))


@pytest.mark.parametrize("text", ["- a list", "a: [", "", "!!python/object:os.system {}"])
def test_a_config_that_is_no_mapping_is_refused(text):
    with pytest.raises(StoredSettingsError):
        read_settings(text)


def test_as_many_values_as_are_allowed_are_read():
    values = [1] * (MOST_VALUES - 1)  # the list is one as well
    assert plain_yaml(yaml.safe_dump(values)) == values


def test_more_values_than_are_allowed_are_refused():
    with pytest.raises(StoredSettingsError, match="more than 20000 keys and values"):
        plain_yaml(yaml.safe_dump([1] * MOST_VALUES))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4e6, "4000000"),
        (2.5, "2.5"),
        (1e15, "1000000000000000"),
        (1e16, "1e16"),
        (2**60 + 1, "1152921504606846977"),
        (-(2**63) + 1, "-9223372036854775807"),
        (10**30, "a number of 31 digits"),
        (True, "True"),
    ],
    ids=repr,
)
def test_a_refused_number_is_printed_in_its_digits(value, text):
    assert str(as_written(value)) == text


def test_the_settings_of_eval_may_be_null():
    settings = compose_jobs("eval", parse(["run=somewhere"], "eval")).jobs[0].settings
    assert isinstance(settings, EvalCommandSettings)
    assert settings.eval.lengths is None

"""Key tokens: what the reference calls so, one window at a time, and the file that keeps it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from measuring import protocol_of
from slow_way import in_blocks, loss_of
from tiny import ROOT
from tiny_model import T

from posenc.core.errors import UserError
from posenc.core.plugins import file_module
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.protocols import key_tokens
from posenc.evaluation.protocols.key_tokens import packed_keys

writing = file_module(str(ROOT / "scripts" / "key_tokens.py"))


def slow_losses(subject, blocks, window):
    """One window at a time: (N, block)."""
    targets = in_blocks(subject, blocks, window)
    losses = [loss_of(subject, text[first:at], text[at], length) for _, text, first, at, length in targets]
    return np.array(losses).reshape(-1, blocks.block)


def test_keys_are_those_that_far_text_makes_clear(subject_of, asked_of, monkeypatch):
    """Of a model that is not trained, so with other thresholds."""
    subject = subject_of("rope")
    blocks = protocol_of("fixed-target").plan(asked_of([T, 4 * T], max_targets=120))
    near = slow_losses(subject, blocks, T)
    far = slow_losses(subject, blocks, 4 * T)
    gains = np.sort((near - far).ravel())
    fifth = int(0.8 * len(gains))
    gain = float(gains[fifth] + gains[fifth + 1]) / 2
    clear = float(np.median(far)) + 1e-4
    monkeypatch.setattr(key_tokens, "GAIN", gain)
    monkeypatch.setattr(key_tokens, "CLEAR", clear)
    is_key = key_tokens.find_keys(subject, blocks, T, 4 * T)
    assert 0 < is_key.sum() < 0.2 * is_key.size
    assert (is_key == ((near - far > gain) & (far < clear))).all()


@pytest.fixture
def low_thresholds(monkeypatch):
    monkeypatch.setattr(key_tokens, "GAIN", 0.0)
    monkeypatch.setattr(key_tokens, "CLEAR", 20.0)


@pytest.fixture
def reference(tmp_path, subject_of, asked_of, low_thresholds):
    """The only entry of a reference that stands in the run directory `tmp_path`."""
    long_trained = replace(subject_of("rope"), context_length=4 * T)
    entry = writing.reference_of(long_trained, asked_of([T, 4 * T]), 0.25)
    write(tmp_path, entry.model_dump())
    return entry


def write(run, entry):
    (run / key_tokens.FILE).write_text(json.dumps({"entries": [entry]}))


@pytest.fixture
def blocks(asked_of):
    return protocol_of("fixed-target").plan(asked_of([T, 4 * T]))


def test_a_reference_is_read_as_it_was_written(reference, blocks, subject_of, tmp_path):
    keys = key_tokens.stored_keys(str(tmp_path), blocks)
    assert keys is not None
    assert (keys == key_tokens.find_keys(subject_of("rope"), blocks, T, 4 * T)).all()
    assert 0 < keys.sum() == reference.count < keys.size


def test_a_reference_has_no_keys_of_other_targets(reference, asked_of, tmp_path):
    other = protocol_of("fixed-target").plan(asked_of([T, 8 * T]))
    assert key_tokens.stored_keys(str(tmp_path), other) is None


def test_targets_that_the_reference_does_not_have_are_a_note(reference, subject_of, asked_of, tmp_path):
    protocol = protocol_of("key-tokens", key_tokens=str(tmp_path))
    plan = protocol.plan(asked_of([T, 8 * T]))
    with pytest.raises(NotApplicableError, match="the reference has other targets"):
        protocol.measure(subject_of("rope"), plan, T)


def test_a_reference_of_these_targets_is_accepted(reference, tmp_path):
    key_tokens.check_reference(str(tmp_path), "bytes", reference.targets)


@pytest.mark.parametrize(
    ("change", "tokenizer", "says"),
    [({"max_targets": 5}, "bytes", "max_targets 5"), ({}, "bpe", "as bpe")],
    ids=["targets", "tokenizer"],
)
def test_a_reference_of_other_targets_is_refused(reference, tmp_path, change, tokenizer, says):
    targets = reference.targets.model_copy(update=change)
    with pytest.raises(UserError, match=says) as caught:
        key_tokens.check_reference(str(tmp_path), tokenizer, targets)
    assert caught.value.key == "eval.key_tokens"


@pytest.mark.parametrize(
    "keys", ["", "!", "eJwDAAAAAAE=", packed_keys(np.ones((9999, 64), dtype=bool))], ids=range(4)
)
def test_damaged_keys_are_refused(reference, blocks, tmp_path, keys):
    write(tmp_path, {**reference.model_dump(), "keys": keys})
    with pytest.raises(UserError, match="damaged"):
        key_tokens.stored_keys(str(tmp_path), blocks)


@pytest.mark.parametrize("text", ["[]", '{"entries": 3}', "{"])
def test_a_file_that_is_no_reference_is_refused(blocks, tmp_path, text):
    (tmp_path / key_tokens.FILE).write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        key_tokens.stored_keys(str(tmp_path), blocks)


def test_a_run_without_a_reference_is_refused(blocks, tmp_path):
    with pytest.raises(UserError, match="there is no"):
        key_tokens.stored_keys(str(tmp_path), blocks)


@pytest.mark.parametrize("max_targets", [4000, 8000, 16000, 32000])
def test_the_reference_that_ships_is_of_the_default_settings(max_targets):
    (entry,) = (e for e in key_tokens.read_references(None) if e.max_targets == max_targets)
    assert entry.base == 64
    assert entry.block == 16
    assert entry.longest == 512
    assert entry.split == "test"


def test_the_reference_that_ships_has_key_tokens():
    assert max(entry.count for entry in key_tokens.read_references(None)) > 100


def test_the_reference_that_ships_is_small():
    assert key_tokens.SHIPPED.stat().st_size < 200_000

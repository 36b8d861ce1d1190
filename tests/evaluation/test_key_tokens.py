"""Key tokens: what the reference calls so, one window at a time, and the file that keeps it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from slow_way import in_blocks, loss_of
from tiny import ROOT
from tiny_model import T

from posenc.core.errors import UserError
from posenc.encodings.registry import file_module
from posenc.evaluation import fixed_target, key_tokens
from posenc.evaluation.forward_cache import NotApplicableError

writing = file_module(str(ROOT / "scripts" / "key_tokens.py"))


def test_keys_are_those_that_far_text_makes_clear(subject_of, asked_of, monkeypatch):
    """Against one window at a time; of a model that is not trained, so with other thresholds."""
    subject, asked = subject_of("rope"), asked_of([T, 4 * T], max_targets=120)
    blocks = fixed_target.plan(asked)

    def losses(window):
        every = in_blocks(subject, blocks, window)
        slow = [loss_of(subject, text[first:at], text[at], length) for _, text, first, at, length in every]
        return np.array(slow).reshape(-1, blocks.block)

    near, far = losses(T), losses(4 * T)
    gains = np.sort((near - far).ravel())
    gain = float(gains[int(0.8 * len(gains))] + gains[int(0.8 * len(gains)) + 1]) / 2
    clear = float(np.median(far)) + 1e-4
    monkeypatch.setattr(key_tokens, "GAIN", gain)
    monkeypatch.setattr(key_tokens, "CLEAR", clear)
    keys = writing.keys_of(subject, blocks, T, 4 * T)
    assert 0 < keys.sum() < 0.2 * keys.size
    assert (keys == ((near - far > gain) & (far < clear))).all()


@pytest.fixture
def written(tmp_path, subject_of, asked_of, monkeypatch):
    """A run directory with a reference, its only entry, and what was asked."""
    monkeypatch.setattr(key_tokens, "GAIN", 0.0)
    monkeypatch.setattr(key_tokens, "CLEAR", 20.0)
    asked = asked_of([T, 4 * T])
    entry = writing.entry_of(replace(subject_of("rope"), train_length=4 * T), asked)
    (tmp_path / key_tokens.FILE).write_text(json.dumps({"entries": [entry]}))
    return tmp_path, entry, asked


def test_a_reference_is_read_as_it_was_written(written, subject_of, asked_of):
    run, entry, asked = written
    blocks = fixed_target.plan(asked)
    keys = key_tokens.stored_keys(str(run), blocks)
    subject = subject_of("rope")
    assert keys is not None and (keys == writing.keys_of(subject, blocks, T, 4 * T)).all()
    assert 0 < keys.sum() == entry["count"] < keys.size
    other = fixed_target.plan(asked_of([T, 8 * T]))
    assert key_tokens.stored_keys(str(run), other) is None
    with pytest.raises(NotApplicableError, match="no key token"):
        key_tokens.measure(subject, key_tokens.plan(asked_of([T, 8 * T], key_tokens=None)), T)
    key_tokens.check_reference(str(run), "bytes", **{key: entry[key] for key in key_tokens.OF})


def test_what_is_no_reference_of_these_targets_is_refused(written):
    run, entry, asked = written
    of, blocks = {key: entry[key] for key in key_tokens.OF}, fixed_target.plan(asked)
    for change, tokenizer, said in (({"max_targets": 5}, "bytes", "max_targets 5"), ({}, "bpe", "as bpe")):
        with pytest.raises(UserError, match=said) as caught:
            key_tokens.check_reference(str(run), tokenizer, **of | change)
        assert caught.value.key == "eval.key_tokens"
    damaged = ["", "!", "eJwDAAAAAAE=", writing.encoded(np.ones((9999, 64), dtype=bool))]
    files = {json.dumps({"entries": [{**entry, "keys": keys}]}): "damaged" for keys in damaged}
    for text, said in {"[]": "cannot be read", '{"entries": 3}': "cannot be read", **files}.items():
        (run / key_tokens.FILE).write_text(text)
        with pytest.raises(UserError, match=said):
            key_tokens.stored_keys(str(run), blocks)


def test_the_reference_that_ships_is_of_the_default_settings():
    entries = {entry["max_targets"]: entry for entry in key_tokens.read_reference(None)}
    assert set(entries) == {4000, 8000, 16000, 32000} and key_tokens.SHIPPED.stat().st_size < 200_000
    for entry in entries.values():
        assert (entry["base"], entry["block"], entry["longest"], entry["split"]) == (64, 16, 512, "test")
    assert entries[32000]["count"] > 100

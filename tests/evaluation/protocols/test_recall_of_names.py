"""Recall of planted names: lines NAME = VALUE in text that assigns names itself."""

import dataclasses
import re

import numpy as np
import pytest
from measuring import protocol_of
from oracle import oracle_context
from tiny_model import T
from token_stores import request_for, store_of

from posenc.core.errors import UserError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols import recall
from posenc.evaluation.protocols.base import MeasurementFacts
from posenc.settings.tree import PlantSettings

GRID = {"distances": [8, 11, 28, 100], "pairs": [1, 4], "windows": 40}
WINDOWS = [T, 2 * T, 8 * T]
PLANT = PlantSettings(kind="assignments", share=0.5, pairs=1, cue=1, alphabet=8, weight=1.0)
CUE_LENGTH = 5  # a line end, a letter, " = "
LETTERS = "abcdefghijklmnop"
EACH_WINDOW = pytest.mark.parametrize("window", WINDOWS)


def documents():
    """Return twelve texts of words of one letter, each of which assigns three names itself."""
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(12):
        words = rng.choice(list(LETTERS), 200).tolist()
        names = rng.choice(list(LETTERS[:8]), 3).tolist()
        for place in range(0, 200, 10):
            words[place] = f"{rng.choice(names)} = z\n"
        texts.append(" ".join(words).encode())
    return texts


@pytest.fixture(scope="module")
def context():
    """Return a model that says what came behind the last cue, and text whose commonest words are LETTERS."""
    words = []
    for rank, letter in enumerate(LETTERS):
        words += [letter] * (40 - rank)
    store = store_of(documents(), [" ".join(words).encode()])
    return dataclasses.replace(oracle_context(CUE_LENGTH), store=store)


def planned(context, grid=GRID, plant=PLANT, **changes):
    return protocol_of("recall", recall=grid).plan(
        request_for(context.store, WINDOWS, plant=plant, **changes)
    )


def measure(context, plan, window):
    return protocol_of("recall", recall=GRID).measure(context, plan, window).extra["recall"]


def windows_with_texts(context, plan, window):
    """Yield the question of each window, its text without pairs, and its bytes."""
    stops = plan.ends + context.document_starts[plan.documents]
    for question in plan.questions_in(window):
        windows = recall.windows_of(context, plan, window, question)
        for row, stop in zip(windows, stops, strict=True):
            text = context.store.tokens[stop - window - 1 : stop]
            yield question, text.astype(np.uint8).tobytes(), row.astype(np.uint8).tobytes()


@EACH_WINDOW
def test_a_copy_head_finds_every_value(context, window):
    answers = measure(context, planned(context), window)
    assert answers["correct"] == answers["windows"]


def test_every_distance_is_asked_in_the_longest_window(context):
    answers = measure(context, planned(context), 8 * T)
    assert answers["distance"] == [*GRID["distances"], 8]


def test_shuffled_values_are_found_by_chance_alone(context, monkeypatch):
    plan = planned(context, grid={**GRID, "windows": 400})
    windows_of = recall.windows_of

    def shuffled(*which):
        windows = windows_of(*which)
        windows[:, -1] = np.roll(windows[:, -1], 1)
        return windows

    monkeypatch.setattr(recall, "windows_of", shuffled)
    answers = measure(context, plan, T)
    assert sum(answers["correct"]) / sum(answers["windows"]) == pytest.approx(1 / 8, abs=0.05)


@EACH_WINDOW
def test_the_asked_name_is_assigned_once_before_at_its_distance(context, window):
    for question, _, row in windows_with_texts(context, planned(context), window):
        asked = row[window - CUE_LENGTH : window]
        assert re.fullmatch(rb"\n[a-h] = ", asked)
        assert row[:window].count(asked[1:]) == 2
        assert row.index(asked) == window - CUE_LENGTH - question.distance


@EACH_WINDOW
def test_windows_are_text_but_for_their_lines(context, window):
    for question, text, row in windows_with_texts(context, planned(context), window):
        is_text = np.ones(window + 1, dtype=bool)
        is_text[window - CUE_LENGTH :] = False
        lines = 0
        for line in re.finditer(rb"(?=\n[a-h] = [i-p]\n)", row[:window]):
            is_text[line.start() : line.start() + 7] = False
            lines += 1
        assert lines == question.pairs
        assert (np.frombuffer(row, np.uint8) == np.frombuffer(text, np.uint8))[is_text].all()


def test_another_seed_draws_other_names_of_the_same_hash(context):
    first = planned(context, seed=0)
    second = planned(context, seed=1)
    assert not np.array_equal(first.cues, second.cues)
    assert first.hash == second.hash


def test_a_record_says_the_kind_and_from_how_many_values_a_guess_is(context):
    answers = measure(context, planned(context), T)
    assert (answers["kind"], answers["choices"]) == ("assignments", 8)


# --- A model that was trained on another kind


def test_a_setting_asks_for_another_kind_than_that_of_the_training(context):
    of_tokens = PLANT.with_changes(kind="tokens")
    asked = planned(context, grid={**GRID, "kind": "assignments"}, plant=of_tokens)
    assert asked.kind == "assignments"
    assert np.array_equal(asked.cues, planned(context).cues)
    assert asked.hash == planned(context).hash


def test_kinds_have_different_hashes(context):
    assert planned(context, plant=PLANT.with_changes(kind="tokens")).hash != planned(context).hash


def test_a_kind_that_there_is_not_is_refused():
    protocol = protocol_of("recall", recall={**GRID, "kind": "names"})
    with pytest.raises(UserError, match="there is no such plant") as caught:
        protocol.check(EvalLengths.of(WINDOWS, T))
    assert caught.value.key == "eval.recall.kind"


def test_a_kind_that_the_tokenizer_cannot_write_is_refused():
    facts = MeasurementFacts(
        fingerprint="corpus",
        tokenizer="bpe",
        split="test",
        plant=PLANT.with_changes(kind="tokens"),
        lengths=EvalLengths.of(WINDOWS, T),
        max_targets=100,
    )
    with pytest.raises(UserError, match="write words as bytes"):
        protocol_of("recall", recall={**GRID, "kind": "assignments"}).check_text(facts)


def test_a_plan_without_a_text_has_as_many_tokens(context):
    """As `--dry-run` makes it, of a store whose tokens are all 0."""
    nothing = np.zeros_like(context.store.tokens)
    outline = dataclasses.replace(context.store, tokens=nothing, is_outline=True)
    plan = protocol_of("recall", recall=GRID).plan(request_for(outline, WINDOWS, plant=PLANT))
    assert plan.tokens(8 * T) == planned(context).tokens(8 * T)

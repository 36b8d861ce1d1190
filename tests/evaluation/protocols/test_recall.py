"""Recall: a model that copies finds every value, one whose values are shuffled finds none."""

import numpy as np
import pytest
import yaml
from measuring import protocol_of
from oracle import oracle_context
from tiny_model import T
from token_stores import request_for, store_of

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols import recall
from posenc.evaluation.protocols.base import MeasurementFacts
from posenc.settings.tree import PlantSettings

GRID = {"distances": [3, 8, 14, 28, 100], "pairs": [1, 5], "windows": 24}
WINDOWS = [T // 2, T, 2 * T, 8 * T]
EACH_CUE = pytest.mark.parametrize("cue", [1, 2])
EACH_WINDOW = pytest.mark.parametrize("window", WINDOWS)


def plant_of(cue, pairs=2):
    return PlantSettings(share=0.5, pairs=pairs, cue=cue, alphabet=64, weight=1.0)


def planned(context, cue, grid=GRID, **changes):
    request = request_for(context.store, WINDOWS, **{"plant": plant_of(cue), **changes})
    return protocol_of("recall", recall=grid).plan(request)


def measure(context, plan, window):
    return protocol_of("recall", recall=GRID).measure(context, plan, window).extra["recall"]


@EACH_WINDOW
@EACH_CUE
def test_a_copy_head_finds_every_value(cue, window):
    context = oracle_context(cue)
    plan = planned(context, cue)
    answers = measure(context, plan, window)
    assert answers["correct"] == answers["windows"]
    assert max(answers["nats"]) < 1e-6


@EACH_WINDOW
@EACH_CUE
def test_every_distance_that_fits_is_asked_with_the_pairs_of_the_training(cue, window):
    context = oracle_context(cue)
    answers = measure(context, planned(context, cue), window)
    questions = zip(answers["distance"], answers["pairs"], strict=True)
    distances = [distance for distance, pairs in questions if pairs == 2]
    assert distances == [distance for distance in GRID["distances"] if cue < distance <= window - cue]


@EACH_CUE
def test_other_numbers_of_pairs_are_asked_at_the_farthest_distance_within_half_of_t(cue):
    context = oracle_context(cue)
    answers = measure(context, planned(context, cue), 8 * T)
    questions = zip(answers["distance"], answers["pairs"], strict=True)
    assert [question for question in questions if question[1] != 2] == [(8, 1), (8, 5)]


@EACH_CUE
def test_shuffled_values_are_found_by_chance_alone(cue, monkeypatch):
    context = oracle_context(cue)
    plan = planned(context, cue)
    windows_of = recall.windows_of

    def shuffled(*which):
        windows = windows_of(*which)
        windows[:, -1] = np.roll(windows[:, -1], 1)
        return windows

    monkeypatch.setattr(recall, "windows_of", shuffled)
    answers = measure(context, plan, 8 * T)
    assert sum(answers["correct"]) < 0.15 * sum(answers["windows"])


def questions_with_windows(cue, window):
    """Each question that fits, with the text and the planted window of every row."""
    context = oracle_context(cue)
    plan = planned(context, cue)
    tokens = context.store.tokens
    for question in plan.questions_in(window):
        windows = recall.windows_of(context, plan, window, question)
        for row, stop in zip(windows, plan.ends + context.document_starts[plan.documents], strict=True):
            yield question, tokens[stop - window - 1 : stop], row


@EACH_WINDOW
@EACH_CUE
def test_windows_are_text_but_for_their_pairs(cue, window):
    """The tokens of pairs are not in the text, so every planted token differs from it."""
    for question, text, row in questions_with_windows(cue, window):
        assert np.count_nonzero(row != text) == (question.pairs + 1) * (cue + 1)


@EACH_WINDOW
@EACH_CUE
def test_the_asked_cue_came_once_before_at_its_distance(cue, window):
    """By a walk through each window."""
    for question, _, row in questions_with_windows(cue, window):
        last_cue = row[window - cue : window]
        places = [p for p in range(window - cue) if np.array_equal(row[p : p + cue], last_cue)]
        assert places == [window - cue - question.distance]
        assert row[places[0] + cue] == row[window]


@EACH_CUE
def test_keys_that_a_text_has_are_not_planted_in_it(cue):
    """Half of the keys, which are the bytes from 0 on, stand between the letters of every test document."""
    letters = np.random.default_rng(0).integers(97, 117, (12, 400))
    text = letters.copy()
    text[:, ::4] = np.arange(100) % 32
    store = store_of(text.tolist(), letters[:2].tolist())
    plan = protocol_of("recall", recall=GRID).plan(request_for(store, WINDOWS, plant=plant_of(cue)))
    for document, end, cues in zip(plan.documents, plan.ends, plan.cues, strict=True):
        in_window = store.document("test", document)[end - max(WINDOWS) - 1 : end]
        assert not np.isin(cues, in_window).any()
        assert (cues < 64).all()


@EACH_CUE
def test_the_same_pair_is_asked_for_in_every_cell(cue):
    context = oracle_context(cue)
    plan = planned(context, cue)
    last_pairs = set()
    for window in WINDOWS:
        for question in plan.questions_in(window):
            windows = recall.windows_of(context, plan, window, question)
            last_pairs.add(windows[:, window - cue :].tobytes())
    assert len(last_pairs) == 1


@EACH_CUE
def test_the_first_windows_of_a_question_are_those_of_all(cue):
    context = oracle_context(cue)
    plan = planned(context, cue)
    for question in plan.questions_in(8 * T):
        windows = recall.windows_of(context, plan, 8 * T, question)
        assert np.array_equal(recall.windows_of(context, plan, 8 * T, question, 7), windows[:7])


def test_no_window_is_made_that_is_not_asked(monkeypatch):
    """Beyond T most distances are asked in a quarter of the windows."""
    context = oracle_context(1)
    plan = planned(context, 1)
    windows_of = recall.windows_of
    n_made = []

    def counted(*which):
        windows = windows_of(*which)
        n_made.append(len(windows))
        return windows

    monkeypatch.setattr(recall, "windows_of", counted)
    answers = measure(context, plan, 8 * T)
    assert n_made == answers["windows"]
    assert min(n_made) < max(n_made)


def test_the_number_of_targets_does_not_change_the_plan():
    context = oracle_context(1)
    assert planned(context, 1, max_targets=7).hash == planned(context, 1).hash


# --- Which texts, drawn by the seed
def windows_asked(window):
    """How many windows each question is asked in, by distance and number of pairs."""
    context = oracle_context(1)
    answers = measure(context, planned(context, 1), window)
    questions = zip(answers["distance"], answers["pairs"], strict=True)
    return dict(zip(questions, answers["windows"], strict=True))


@pytest.mark.parametrize("window", [T // 2, T])
def test_up_to_t_every_question_is_asked_in_all_windows(window):
    assert set(windows_asked(window).values()) == {24}


def test_past_t_the_farthest_distance_is_asked_in_all_windows_and_the_rest_in_a_quarter():
    asked = windows_asked(8 * T)
    assert asked.pop((100, 2)) == 24
    assert set(asked.values()) == {6}


def test_tokens_are_those_of_the_questions_that_are_asked():
    context = oracle_context(1)
    assert planned(context, 1).tokens(8 * T) == sum(windows_asked(8 * T).values()) * 8 * T


def test_another_seed_draws_other_texts_and_pairs():
    context = oracle_context(1)
    first, second = (planned(context, 1, seed=seed) for seed in (0, 1))
    assert (first.ends != second.ends).any()
    assert (first.values != second.values).any()


def test_another_seed_has_the_same_hash_since_it_draws_from_the_same():
    context = oracle_context(1)
    assert planned(context, 1, seed=1).hash == planned(context, 1, seed=0).hash


def test_the_same_seed_draws_the_same():
    context = oracle_context(1)
    first, second = (planned(context, 1, seed=3) for _ in range(2))
    assert np.array_equal(first.ends, second.ends)
    assert np.array_equal(first.values, second.values)


def test_windows_lie_anywhere_in_a_document():
    """Documents have 400 tokens and windows 129, so the ends lie from 129 to 400."""
    context = oracle_context(1)
    ends = planned(context, 1, grid={**GRID, "windows": 2000}).ends
    assert ends.min() == 8 * T + 1
    assert ends.max() == 400
    assert ends.mean() == pytest.approx((8 * T + 1 + 400) / 2, abs=5)


def test_every_document_gives_as_many_windows_up_to_one():
    context = oracle_context(1)
    plan = planned(context, 1, grid={**GRID, "windows": 30})  # of twelve documents
    counts = np.bincount(plan.documents, minlength=12)
    assert counts.min() == 2
    assert counts.max() == 3


def test_a_record_says_that_its_windows_are_drawn():
    context = oracle_context(1)
    assert measure(context, planned(context, 1), T)["draw"] == 0


def test_an_evaluation_may_set_every_key_of_the_group():
    """What conf/eval.yaml does not name is refused as unknown."""
    tree = yaml.safe_load((conf_dir() / "eval.yaml").read_text(encoding="utf-8"))
    assert set(tree["eval"]["recall"]) == set(recall.RecallSettings.model_fields)


CHANGES = {
    "draw": {"grid": {**GRID, "draw": 1}},
    "windows": {"grid": {**GRID, "windows": 23}},
    "distances": {"grid": {**GRID, "distances": [3, 8]}},
    "pairs": {"grid": {**GRID, "pairs": [1]}},
    "cue": {"plant": plant_of(2)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_hash_says_what_is_asked(change):
    context = oracle_context(1)
    assert planned(context, 1, **CHANGES[change]).hash != planned(context, 1).hash


def test_a_model_that_saw_no_pairs_is_a_note():
    context = oracle_context(1)
    with pytest.raises(NotApplicableError, match=r"trained with data\.plant"):
        measure(context, planned(context, 1, plant=None), T)


def test_a_window_without_room_is_a_note():
    context = oracle_context(1)
    with pytest.raises(NotApplicableError, match="fits into 3"):
        measure(context, planned(context, 1), 3)


def test_where_the_pairs_of_the_training_do_not_fit_fewer_are_not_asked_either():
    plan = planned(oracle_context(1), 1, plant=plant_of(1, pairs=5))
    assert plan.questions_in(T // 2) == []


def facts_of(**plant):
    """Return the facts of a text in bytes with a plant of four keys."""
    return MeasurementFacts(
        fingerprint="corpus",
        tokenizer="bytes",
        split="test",
        plant=PlantSettings(share=0.5, alphabet=4, weight=1.0, **plant),
        lengths=EvalLengths.of(WINDOWS, T),
        max_targets=100,
    )


def test_more_pairs_than_cues_are_refused():
    with pytest.raises(UserError, match="more than there are cues") as caught:
        protocol_of("recall", recall=GRID).check_text(facts_of(pairs=2, cue=1))
    assert caught.value.key == "eval.recall.pairs"


def test_cues_of_two_tokens_are_enough_for_more_pairs_than_keys():
    protocol_of("recall", recall={**GRID, "pairs": [16]}).check_text(facts_of(pairs=8, cue=2))


def test_another_kind_with_fewer_cues_than_pairs_in_training_is_refused():
    asked = {**GRID, "pairs": [1], "kind": "assignments"}
    with pytest.raises(UserError, match=r"assignments: has fewer cues \(4\).*data\.plant\.pairs=8"):
        protocol_of("recall", recall=asked).check_text(facts_of(pairs=8, cue=2))


@pytest.mark.parametrize(
    ("distances", "tokens"), [(["0.3x", "1x"], [5, 16]), (["0.01x"], [2]), ([40, 7, 40], [7, 40])]
)
def test_distances_are_tokens_or_rounded_multiples_of_t(distances, tokens):
    protocol = protocol_of("recall", recall={**GRID, "distances": distances})
    assert protocol.distances(EvalLengths.of(WINDOWS, T)) == tokens


def test_tokens_that_hold_no_pair_are_refused_and_multiples_are_left_out():
    asked = {**GRID, "distances": ["0.25x", 2, 8], "pairs": [1]}
    protocol_of("recall", recall=asked).check_text(facts_of(pairs=2, cue=1))
    with pytest.raises(UserError, match="is shorter than a planted pair of 3 tokens") as caught:
        protocol_of("recall", recall=asked).check_text(facts_of(pairs=2, cue=2))
    assert (caught.value.key, caught.value.value) == ("eval.recall.distances", 2)


def test_a_multiple_of_nothing_is_refused():
    with pytest.raises(UserError, match="is no length"):
        protocol_of("recall", recall={**GRID, "distances": ["0x"]}).check(EvalLengths.of(WINDOWS, T))


def test_a_distance_of_one_token_is_refused():
    with pytest.raises(UserError) as caught:
        protocol_of("recall", recall={**GRID, "distances": [1]}).check(EvalLengths.of(WINDOWS, T))
    assert caught.value.key == "eval.recall.distances"

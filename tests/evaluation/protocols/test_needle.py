"""needle: facts in real text, asked for at its end; an oracle that copies finds all, a shuffled one none."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_runs import compared, needle_records, write_run
from measuring import protocol_of
from token_stores import request_for, store_of

from posenc.core.errors import UserError
from posenc.data.tokenizers import Tokenizer
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols import needle
from posenc.evaluation.protocols.needle import LEAST_WORDS, windows_of, words_of
from posenc.results.statistics.proportions import wilson

T = 256
ASKED = {"depths": [0.0, 0.5, 1.0], "keys": [1, 3], "values": 1, "queries": 1, "windows": 12}
LONGEST_VALUE = 6  # bytes of a value, with the blank before it
CUE = 9  # tokens by which the oracle finds what came after them: more than ` is` and the end of a word


def copying(tokens, shift=0):
    """Return logits (B, W, 256) for what came behind the last CUE tokens when they came before.

    With a shift they are for a token that is so much larger.
    """
    logits = torch.zeros(*tokens.shape, 256)
    for row, text in enumerate(tokens.tolist()):
        followers = {}
        for end in range(CUE, len(text) + 1):
            cue = tuple(text[end - CUE : end])
            if cue in followers:
                logits[row, end - 1, (followers[cue] + shift) % 256] = 50.0
            if end < len(text):
                followers[cue] = text[end]
    return logits


def context_of(function):
    """Return the context of a function, with twenty documents of letters."""
    text = np.random.default_rng(0).integers(97, 123, (20, 3 * T))
    return EvalContext(
        model=CallableModel(function, 256, T),
        context_length=T,
        seed=0,
        precision="fp32",
        device=torch.device("cpu"),
        store=store_of(text.tolist()),
        split="test",
        batch_tokens=4 * T,
    )


def asked(context, window, **changes):
    """Return the counts of the function of a context in windows of one length."""
    protocol = protocol_of("needle", needle=ASKED | changes)
    plan = protocol.plan(request_for(context.store, [T, 2 * T], context_length=T))
    return protocol.measure(context, plan, window).extra["needle"]


def found(function, window, **changes):
    """Return the counts of a function in windows of one length."""
    return asked(context_of(function), window, **changes)


@pytest.mark.parametrize("changes", [{}, {"values": 2}, {"keys": [2, 3], "queries": 2}], ids=str)
@pytest.mark.parametrize("window", [T, 2 * T])
def test_an_oracle_that_copies_finds_every_fact(window, changes):
    counts = found(copying, window, **changes)
    assert counts["correct"] == counts["answers"]
    assert {0.0, 0.5, 1.0} == set(counts["depth"])


def test_an_oracle_that_copies_something_else_finds_none():
    counts = found(lambda tokens: copying(tokens, shift=1), T)
    assert sum(counts["correct"]) == 0


def test_shuffled_values_are_found_by_chance_alone(monkeypatch):
    """The value that is asked for is that of another window, so that a copy of the fact is wrong."""

    def shuffled(*which):
        windows = windows_of(*which)
        windows[:, -LONGEST_VALUE:] = np.roll(windows[:, -LONGEST_VALUE:], 1, axis=0)
        return windows

    monkeypatch.setattr(needle, "windows_of", shuffled)
    counts = found(copying, T, keys=[1], windows=24)
    assert sum(counts["correct"]) < 0.1 * sum(counts["answers"])


def test_an_oracle_that_confuses_the_keys_finds_its_share():
    """It answers with the value of a key that it draws among three: a third of them are right."""

    def confused(tokens):
        logits = copying(tokens)
        for row, text in enumerate(tokens.tolist()):
            line = bytes(text)
            answers = [line[i + 4 : i + 10] for i in range(len(line)) if line[i : i + 4] == b" is "][:3]
            answer = b" " + answers[int(np.random.default_rng(row + sum(text)).integers(len(answers)))]
            for place in range(LONGEST_VALUE):
                logits[row, -LONGEST_VALUE + place] = 0
                logits[row, -LONGEST_VALUE + place, answer[place]] = 50.0
        return logits

    counts = found(confused, T, keys=[3], windows=20, depths=[0.0, 0.25, 0.5, 0.75, 1.0])
    assert 0.15 < sum(counts["correct"]) / sum(counts["answers"]) < 0.55


def test_a_sentence_stands_at_its_depth():
    context = context_of(copying)
    protocol = protocol_of("needle", needle=ASKED)
    plan = protocol.plan(request_for(context.store, [T], context_length=T))
    for question in plan.questions:
        window = windows_of(context, plan, T, question)
        sentence = plan.vocabulary.sentence(plan.keys[0, 0], plan.values[0, 0])
        text = bytes(window[0].astype(np.uint8))
        assert len(text) == T + 1
        begin = text.index(bytes(sentence.astype(np.uint8)))
        room = len(text) - plan.tail_length - len(sentence)
        assert abs(begin / room - question.depth) < 0.25


def test_all_sentences_that_are_asked_for_stand_at_the_depth():
    context = context_of(copying)
    protocol = protocol_of("needle", needle=ASKED | {"keys": [3], "queries": 2})
    plan = protocol.plan(request_for(context.store, [2 * T], context_length=T))
    for question in plan.questions:
        text = bytes(windows_of(context, plan, 2 * T, question)[0].astype(np.uint8))
        asked_for = []
        for number in range(2):
            sentence = plan.vocabulary.sentence(plan.keys[0, number], plan.values[0, number])
            asked_for.append(bytes(sentence.astype(np.uint8)))
        begin = text.index(asked_for[0])
        # one behind the other, with the end of a sentence between them
        between = text[begin + len(asked_for[0]) : text.index(asked_for[1])]
        assert between == bytes(plan.vocabulary.after_value.astype(np.uint8))


def test_several_queries_are_other_targets_than_one():
    """A stored answer to one of them is none to the other."""
    context = context_of(copying)
    hashes = set()
    for queries in (1, 2):
        protocol = protocol_of("needle", needle=ASKED | {"keys": [3], "queries": queries})
        hashes.add(protocol.plan(request_for(context.store, [2 * T], context_length=T)).hash)
    assert len(hashes) == 2


def test_what_leaves_no_room_to_the_text_is_left_out():
    context = context_of(copying)
    protocol = protocol_of("needle", needle=ASKED | {"keys": [1, 64]})
    plan = protocol.plan(request_for(context.store, [T], context_length=T))
    assert {question.keys for question in plan.questions_in(T)} == {1}


def test_what_leaves_less_than_half_of_a_window_to_the_text_is_left_out():
    context = context_of(copying)
    protocol = protocol_of("needle", needle=ASKED | {"keys": [3, 4]})
    plan = protocol.plan(request_for(context.store, [T], context_length=T))
    assert plan.text_length(T, 3) > T / 2 > plan.text_length(T, 4) > 0
    assert {question.keys for question in plan.questions_in(T)} == {3}


@pytest.mark.parametrize("changes", [{}, {"values": 2}, {"keys": [2, 3], "queries": 2}], ids=str)
@pytest.mark.parametrize("window", [T, 2 * T])
def test_a_plan_counts_what_goes_through_the_model(passes_made, window, changes):
    context = context_of(lambda tokens: torch.zeros(*tokens.shape, 256))
    protocol = protocol_of("needle", needle=ASKED | changes)
    plan = protocol.plan(request_for(context.store, [T, 2 * T], context_length=T))
    sums = protocol.measure(context, plan, window)
    assert plan.count_targets(window) == sums.targets.sum()
    assert plan.tokens(window) == sum(made.inputs.numel() for made in passes_made)
    assert {plan.targets_in(window)} == {made.n_targets for made in passes_made}


def test_more_words_than_any_tokenizer_gives_are_refused_before_the_text_is_read():
    protocol = protocol_of("needle", needle=ASKED | {"keys": [1, 64], "values": 8})
    with pytest.raises(UserError, match="needs 576 different words") as caught:
        protocol.check(EvalLengths.of([T], T))
    assert caught.value.key == "eval.needle.keys"


def test_more_words_than_this_tokenizer_has_are_refused(monkeypatch):
    monkeypatch.setattr(needle, "MOST_WORDS", 64)
    protocol = protocol_of("needle", needle=ASKED | {"keys": [40]})
    with pytest.raises(UserError, match="at most 64 words here, so 32 keys"):
        protocol.check_tokenizer(Tokenizer("bytes"))


def tokenizer_with(n_words):
    """Return a tokenizer of letters in which so many words are single tokens."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    names = [f"{a}{b}{c}d" for a in "bdfg" for b in "aeiou" for c in "klmnr"][:n_words]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {sign: number for number, sign in enumerate([*alphabet, *(f"Ġ{name}" for name in names)])}
    library = Library(models.WordPiece(vocabulary, unk_token="!", continuing_subword_prefix=""))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return Tokenizer("hf", library.to_str())


def test_words_are_single_tokens_of_a_tokenizer_that_has_them():
    words = words_of(tokenizer_with(100), needed=100)
    assert words.words.shape == (100, 1)


@pytest.mark.parametrize(("n_words", "needed"), [(63, 2), (70, 96)])
def test_words_are_made_up_where_a_tokenizer_has_too_few(n_words, needed):
    words = words_of(tokenizer_with(n_words), needed)
    assert len(words.words) >= max(needed, LEAST_WORDS)
    assert words.words.shape[1] == 6


def test_a_tokenizer_without_words_has_made_up_ones():
    words = words_of(Tokenizer("bytes"), needed=2)
    assert len(words.words) >= LEAST_WORDS
    assert words.words.shape[1] == 6


def test_the_progress_of_a_cell_is_that_of_all_its_questions():
    shares = []
    asked(replace(context_of(copying), on_batch=shares.append), T)
    assert shares == sorted(shares)
    assert shares[0] < 1 / 6  # of three depths, and one or three keys
    assert shares[-1] == 1


def test_the_same_windows_are_passed_through_the_model_once():
    n_passes = 0

    def counted(tokens):
        nonlocal n_passes
        n_passes += 1
        return copying(tokens)

    context = context_of(counted)
    first_counts = asked(context, T)
    n_passes_at_first = n_passes
    assert asked(context, T) == first_counts
    assert n_passes == n_passes_at_first > 0


def test_the_record_says_how_many_windows_were_asked():
    counts = found(copying, 2 * T, keys=[3], queries=2)
    assert counts["windows"] == [12, 12, 12]
    assert counts["answers"] == [24, 24, 24]


def needle_row(folder, **changes):
    """Return the cells of a row that found 8 of 16 values; `changes` are those of its record."""
    (measured,) = needle_records({1: (8, 8, 8)})
    measured["needle"] |= changes
    write_run(folder, "rope", records=[measured])
    (row,) = compared(folder, protocol="needle").rows
    return row.needle


def test_the_interval_counts_windows_and_not_the_answers_of_one(tmp_path):
    cells = needle_row(tmp_path, windows=[4, 4, 4])
    assert cells[0].found.ci95 == pytest.approx(wilson(0.5, 4))
    assert cells[0].found.answers == 16


def test_a_record_without_windows_counts_an_answer_a_window(tmp_path):
    cells = needle_row(tmp_path)
    assert cells[0].found.ci95 == pytest.approx(wilson(0.5, 16))

"""ruler: RULER's needles in its own prompts; an oracle that looks values up finds all, another one none."""

import importlib.util
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import hf_models
import numpy as np
import pytest
import torch
from measuring import RULER, protocol_of
from token_stores import request_for, store_of

from posenc.core.errors import UserError
from posenc.data import ruler
from posenc.data.ruler import TASKS, Sample, make_sample
from posenc.data.tokenizers import Tokenizer
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.models.transformers import TransformersModel
from posenc.evaluation.passes import EvalContext, Scores
from posenc.evaluation.protocols.ruler import answered

T = 1024
DRAWN = {"name": "randomized", "max": None, "dense": False}
WORDS = (["brave", "calm", "dull"], ["ant", "bee", "cow", "dog"])
ESSAYS = "I write to think. Why do people write? Some do not! Work is what you do when you are free. " * 30
QUESTION = re.compile(r"The special magic \w+ for (.*) mentioned in the provided text (?:is|are)")


@pytest.fixture(autouse=True)
def words(monkeypatch):
    """Words that need no package."""
    monkeypatch.setattr(ruler, "word_lists", lambda: WORDS)


@pytest.fixture
def essays(tmp_path):
    """A file with essays."""
    path = tmp_path / "essays.txt"
    path.write_text(ESSAYS)
    return str(path)


def oracle(tokens, answer_of):
    """Return logits (B, W, 256) of a model that writes what `answer_of(text, keys)` returns."""
    logits = torch.zeros(*tokens.shape, 256)
    for row, line in enumerate(tokens.tolist()):
        text = bytes(line).decode()
        question = QUESTION.search(text)
        if question is None:
            continue
        keys = re.split(r", and |, ", question[1])
        answer = answer_of(text, keys).encode()
        for place in range(question.end(), len(text) + 1):
            written = place - question.end()
            logits[row, place - 1, answer[written] if written < len(answer) else ord(".")] = 50.0
    return logits


def right(text, keys):
    """Return the values that stand in the text behind the keys."""
    values = [value for key in keys for value in re.findall(rf"for {key} is: ([\w-]+)\.", text)]
    return f" {', '.join(values)}"


def wrong(text, keys):
    """Return the value of another key; where there is none, a number that is not in the text."""
    others = [value for key, value in re.findall(r"for ([\w-]+) is: ([\w-]+)\.", text) if key not in keys]
    return f" {others[0] if others else 1234567}"


def context_of(answer_of):
    """Return the context of an oracle; the text of its store is not used."""
    return EvalContext(
        model=CallableModel(lambda tokens: oracle(tokens, answer_of), 256, T),
        context_length=T,
        seed=0,
        precision="fp32",
        device=torch.device("cpu"),
        store=store_of([[97] * 3 * T]),
        split="test",
        batch_tokens=4 * T,
    )


def found(answer_of, window, **changes):
    """Return the counts of an oracle in windows of one length."""
    context = context_of(answer_of)
    protocol = protocol_of("ruler", ruler={"tasks": list(TASKS), "samples": 2, "essays": None} | changes)
    plan = protocol.plan(request_for(context.store, [T, 2 * T], context_length=T))
    return protocol.measure(context, plan, window).extra["ruler"]


@pytest.mark.parametrize("window", [T, 2 * T])
def test_an_oracle_that_looks_values_up_finds_all_in_every_task(window, essays):
    counts = found(right, window, essays=essays)
    assert counts["task"] == list(TASKS)
    assert counts["correct"] == counts["answers"] == [2, 2, 2, 2, 2, 2, 8, 8]


def test_an_oracle_that_looks_another_key_up_finds_none(essays):
    assert sum(found(wrong, T, essays=essays)["correct"]) == 0


def test_a_value_that_is_written_late_is_found():
    counts = found(lambda text, keys: f" well known to be{right(text, keys)}", T, tasks=["niah_multikey_3"])
    assert counts["correct"] == [2]


def test_of_several_values_those_count_that_are_written(essays):
    counts = found(lambda text, keys: right(text, keys[:3]), T, tasks=["niah_multiquery"], essays=essays)
    assert counts["correct"] == [6]


def test_prompts_fill_a_window_and_leave_room_for_the_answer(essays):
    protocol = protocol_of("ruler", ruler={"tasks": list(TASKS), "samples": 3, "essays": essays})
    plan = protocol.plan(request_for(store_of([[97] * 3 * T]), [T], context_length=T))
    for name in TASKS:
        sizes = [len(sample.prompt) for sample in plan.samples(name, T)]
        assert min(sizes) > T - 3 * ruler.NEW_TOKENS
        assert max(sizes) < T - ruler.NEW_TOKENS


def test_a_plan_counts_two_passes_over_windows_that_are_nearly_full():
    """A model that keeps its keys reads a prompt to score the right answer, and once more to write."""
    model = TransformersModel(hf_models.random_model("llama", **hf_models.LLAMA), T)
    context = replace(context_of(right), model=model)
    protocol = protocol_of("ruler")
    plan = protocol.plan(request_for(context.store, [T], context_length=T))
    read = []
    embedding = model.function.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda _, args: read.append(args[0].numel()))
    protocol.measure(context, plan, T)
    n_passes = 2 * RULER["samples"]
    most_unused = 3 * ruler.NEW_TOKENS  # of a window
    assert 0 <= plan.tokens(T) - sum(read) < n_passes * most_unused


def test_a_window_without_room_is_not_measured():
    with pytest.raises(NotApplicableError, match="leaves 128 of 256 tokens"):
        found(right, 256, tasks=["niah_single_1"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("niah_single_2", "essays, which posenc does not download"),
        ("qa_squad", "SQuAD, which posenc does not download"),
        ("vt", "is no needle task"),
        ("niah_single", "there is no such task"),
    ],
)
def test_a_task_that_cannot_be_made_is_refused_with_what_is_missing(name, message):
    protocol = protocol_of("ruler", ruler={"tasks": [name], "samples": 2, "essays": None})
    with pytest.raises(UserError, match=message):
        protocol.check(EvalLengths.of([T], T, T))


def checked_with(essays):
    """Return the protocol, checked, with a file of essays."""
    protocol = protocol_of("ruler", ruler={"tasks": ["niah_single_2"], "samples": 2, "essays": str(essays)})
    protocol.check(EvalLengths.of([T], T, T))
    return protocol


def test_essays_that_are_not_utf8_are_refused_before_anything_is_planned(tmp_path):
    path = tmp_path / "essays.txt"
    path.write_bytes("Work is what you do in a café".encode("latin-1"))
    with pytest.raises(UserError, match="byte 29 is 0xe9") as caught:
        checked_with(path)
    assert caught.value.key == "eval.ruler.essays"
    assert caught.value.value == str(path)


def test_essays_that_do_not_fill_a_window_are_not_measured(tmp_path):
    """A short prompt would bear the name of a long window."""
    path = tmp_path / "short.txt"
    path.write_text("All of it. " * 80)
    with pytest.raises(NotApplicableError, match=f"too few words for {2 * T} tokens: 241"):
        found(right, 2 * T, tasks=["niah_single_2"], essays=str(path))


def test_a_file_without_text_is_refused(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text(" \n")
    with pytest.raises(UserError, match="has no text"):
        checked_with(path)


def test_a_task_that_is_named_twice_is_asked_once():
    counts = found(right, T, tasks=["niah_single_1", "niah_single_1"])
    assert counts["task"] == ["niah_single_1"]


def test_a_missing_file_of_essays_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no such file"):
        checked_with(tmp_path / "essays.txt")


def test_essays_are_read_once_so_that_a_training_may_end_without_the_file(essays):
    protocol = checked_with(essays)
    Path(essays).unlink()
    plan = protocol.plan(request_for(store_of([[97] * 3 * T]), [T], context_length=T))
    assert " ".join(plan.essays) == ESSAYS


def test_the_file_of_essays_is_stored_with_its_whole_path(essays, monkeypatch):
    monkeypatch.chdir(Path(essays).parent)
    settings = protocol_of("ruler", ruler=RULER | {"essays": "essays.txt"}).settings
    assert settings.ruler.essays == essays


def test_without_the_package_of_words_its_tasks_are_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    protocol = protocol_of("ruler", ruler={"tasks": ["niah_single_1"], "samples": 2, "essays": None})
    with pytest.raises(UserError, match=r"posenc\[ruler\]"):
        protocol.check(EvalLengths.of([T], T, T))


# --- beside lm-evaluation-harness
HARNESS_NAMES = {"filler": "repeat", "needles": "needle", "essays": "essay"}


@pytest.fixture
def harness(monkeypatch):
    """The files of lm-evaluation-harness that make prompts and score them, with words of ours.

    They are loaded by their paths, since the package imports much that they do not need.
    """
    pytest.importorskip("nltk")
    package = importlib.util.find_spec("lm_eval")
    if package is None:
        pytest.skip("lm_eval is not installed")
    monkeypatch.setitem(sys.modules, "wonderwords", SimpleNamespace(RandomWord=lambda: _FewWords()))
    folder = Path(package.submodule_search_locations[0]) / "tasks" / "ruler"
    prompts = _module(folder / "prepare_niah.py")
    monkeypatch.setattr(prompts, "generate_random_word", lambda: "-".join(map(random.choice, WORDS)))
    monkeypatch.setattr(prompts, "cached_sent_tokenize", lambda text: re.split(r"(?<=[.!?])\s+", text))
    return SimpleNamespace(prompts=prompts, scores=_module(folder / "common_utils.py"))


class _FewWords:
    _categories = {"nouns": WORDS[1], "adjectives": WORDS[0], "verbs": []}  # noqa: RUF012


def _module(path):
    """Load a file as a module."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", TASKS)
def test_the_same_draws_give_the_strings_of_the_harness(harness, name):
    task = TASKS[name]
    template = (harness.prompts.__dict__.get("TEMPLATE")) or _harness_template(harness)
    words_of_essays = ESSAYS.split()
    haystack = {"filler": ruler.FILLER, "needles": harness.prompts.get_haystack("needle")}
    random.seed(7)
    text, answers, _ = harness.prompts.generate_input_output(
        40,
        haystack.get(task.haystack, words_of_essays),
        type_haystack=HARNESS_NAMES[task.haystack],
        num_needle_k=task.n_keys,
        type_needle_k=task.keys,
        num_needle_v=task.n_values,
        type_needle_v=task.values,
        template=template,
        num_needle_q=task.n_queries,
    )
    sample = make_sample(task, 40, random.Random(7), words_of_essays)
    assert sample.prompt.startswith(f"{text} The special magic ")
    assert list(sample.answers) == answers


def _harness_template(harness):
    """Return the template of the harness, which stands in a file that imports its package."""
    folder = Path(harness.prompts.__file__).parent
    source = (folder / "niah_utils.py").read_text(encoding="utf-8")
    return re.search(r'TEMPLATE = """(.*)"""', source)[1].replace("\\n", "\n")


@pytest.mark.parametrize(
    "written", ["", " 12 and 34.", "34\x07 1", "AB-cd", "3\n4", " ab-CD, 12, 34 ", "1234"]
)
def test_a_written_text_has_the_score_of_the_harness(harness, written):
    answers = ("12", "34", "ab-cd")
    document = {"max_length": 4096, "outputs": list(answers)}
    expected = harness.scores.process_results(document, [written])["4096"]
    assert Sample("", answers).count_found(written) / 3 == pytest.approx(expected)


def test_depths_are_those_of_the_harness(harness):
    assert [int(depth) for depth in harness.prompts.DEPTHS] == ruler.DEPTHS
    assert np.array(ruler.DEPTHS)[[0, -1]].tolist() == [0, 100]


@pytest.mark.parametrize("params", [{"positions": DRAWN}, {}])
def test_an_answer_is_scored_at_the_positions_where_it_would_be_written(subject_of, monkeypatch, params):
    subject = subject_of("rope", **params)
    sample = Sample("A value for a key is: 12. The value is", ("12",))
    window = len(sample.prompt) + ruler.NEW_TOKENS
    positions = []
    trained_hidden = subject.model.hidden

    def watched_hidden(tokens, pos, *rest):
        positions.append(pos.tolist())
        return trained_hidden(tokens, pos, *rest)

    monkeypatch.setattr(subject.model, "hidden", watched_hidden)
    answered(subject, Tokenizer("bytes"), sample, window)
    longest = max(positions, key=len)
    assert len(positions) > 1
    assert all(pos == longest[: len(pos)] for pos in positions)


def test_a_window_whose_beginning_is_cut_off_is_not_measured_though_the_answer_is_right(
    subject_of, monkeypatch
):
    subject = subject_of("learned", beyond="truncate")
    best = Scores(nats=np.zeros((1, 3)), is_best=np.ones((1, 3), dtype=bool))
    monkeypatch.setattr(EvalContext, "scores_of_new_pass", lambda *_: best)
    sample = Sample("The value is", ("12",))
    with pytest.raises(NotApplicableError, match="loses the beginning"):
        answered(subject, Tokenizer("bytes"), sample, 2 * subject.context_length)


def test_a_plan_counts_a_sample_once(essays):
    context = context_of(right)
    settings = {"tasks": list(TASKS), "samples": 2, "essays": essays}
    protocol = protocol_of("ruler", ruler=settings)
    plan = protocol.plan(request_for(context.store, [T], context_length=T))
    assert plan.count_targets(T) == protocol.measure(context, plan, T).targets.sum()

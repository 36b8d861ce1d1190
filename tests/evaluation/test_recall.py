"""Recall: a model that copies finds every value, one whose values are shuffled finds none."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny_model import T, encoding_of
from token_stores import ask, store_of
from torch import nn

from posenc.evaluation import induction, recall
from posenc.evaluation.forward_cache import EvalContext, NotApplicableError
from posenc.evaluation.plans import RecallGrid

GRID = RecallGrid([3, 8, 14, 28, 100], [1, 5], 24)
WINDOWS = [T // 2, T, 2 * T, 8 * T]


class Oracle(nn.Module):
    """Says what came behind the last `cue` tokens when they came last; it reads one window at a time."""

    def __init__(self, cue):
        super().__init__()
        self.embedding, self.cue = nn.Embedding.from_pretrained(torch.eye(256)), cue
        self.effective_encoding = encoding_of("nope")
        self.shape = dataclasses.make_dataclass("Shape", ["n_heads"])(1)

    def positions(self, n, *_):
        return torch.arange(n)

    def hidden(self, tokens, pos, n_targets, *_):
        said = torch.zeros(len(tokens), n_targets, 256)
        for row, text in enumerate(tokens.tolist()):
            for target in range(n_targets):
                end = len(text) - n_targets + target + 1
                cue = text[end - self.cue : end]
                places = [p for p in range(self.cue, end) if text[p - self.cue : p] == cue]
                said[row, target, text[places[-1]] if places else 0] = 50.0
        return said


def subject(cue):
    text = np.random.default_rng(0).integers(97, 117, (12, 400))
    text[:, 300] = 255  # a key of the text is not asked for
    store = store_of(text.tolist(), text[:2].tolist())
    return EvalContext(Oracle(cue), T, 0, "fp32", torch.device("cpu"), store, "test", 512)


def asked(context, cue, **changes):
    plant = {"share": 0.5, "pairs": 2, "cue": cue, "alphabet": 64, "weight": 1.0}
    return ask(context.store, WINDOWS, **{"plant": plant, "recall": GRID, **changes})


@pytest.mark.parametrize("cue", [1, 2])
def test_a_copy_head_finds_every_value_and_shuffled_values_are_chance(cue, monkeypatch):
    context = subject(cue)
    plan, cells = recall.plan(asked(context, cue)), 0
    for window in WINDOWS:
        found = recall.measure(context, plan, window).recall
        lines = list(zip(found["distance"], found["pairs"], strict=True))
        assert found["correct"] == found["windows"] == [len(plan.ends)] * len(lines)
        assert max(found["nats"]) < 1e-6
        cells += len(lines)
        assert [d for d, p in lines if p == 2] == [d for d in GRID.distances if cue < d <= window - cue]
    assert cells >= 16
    told = recall.windows_at

    def shuffled(*which):
        windows = told(*which)
        windows[:, -1] = np.roll(windows[:, -1], 1)
        return windows

    monkeypatch.setattr(recall, "windows_at", shuffled)
    found = recall.measure(context, plan, 8 * T).recall
    assert sum(found["correct"]) < 0.15 * sum(found["windows"])


@pytest.mark.parametrize("cue", [1, 2])
def test_windows_are_text_with_the_pairs_at_their_distance(cue):
    """By a walk through each window; the same pair is asked for in every cell."""
    context = subject(cue)
    plan = recall.plan(asked(context, cue))
    tokens, answers = context.store.tokens, set()
    for window in WINDOWS:
        for distance, pairs in plan.fitting(window):
            windows = recall.windows_at(context, plan, window, distance, pairs)
            for row, stop in zip(windows, context.starts[plan.documents] + plan.ends, strict=True):
                text = tokens[stop - window - 1 : stop]
                changed = np.flatnonzero(row != text)
                assert len(changed) == (pairs + 1) * (cue + 1)  # their tokens are not in the text
                query = row[window - cue : window]
                first = [p for p in range(window - cue) if np.array_equal(row[p : p + cue], query)]
                assert first == [window - cue - distance]
                assert row[first[0] + cue] == row[window]
            answers.add(windows[:, window - cue :].tobytes())
    assert len(answers) == 1


def test_the_plan_depends_on_text_and_grid_alone():
    context = subject(1)
    plan = recall.plan(asked(context, 1))
    assert plan.hash == recall.plan(asked(context, 1, max_targets=7, stride=2)).hash
    for other in (asked(context, 2), asked(context, 1, recall=dataclasses.replace(GRID, windows=23))):
        assert recall.plan(other).hash != plan.hash
    with pytest.raises(NotApplicableError, match=r"trained with data\.plant"):
        recall.measure(context, recall.plan(ask(context.store, WINDOWS)), T)
    with pytest.raises(NotApplicableError, match="fits into 3"):
        recall.measure(context, plan, 3)
    many = asked(context, 1, plant={**asked(context, 1).plant, "pairs": 5})
    assert recall.plan(many).fitting(T // 2) == []  # one pair would fit, those of the training do not


def test_a_head_that_looks_up_one_token_copies_every_sequence_of_the_induction_probe():
    context = subject(1)
    for window in (T, 8 * T, 16 * T):
        plan = induction.plan(ask(context.store, [T, window]))
        assert induction.measure(context, plan, window).nats.max() < 1e-6

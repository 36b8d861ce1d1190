"""Protocols against the slow way: one target at a time."""

import dataclasses

import numpy as np
import pytest
import slow_way
import torch
from tiny_model import T
from token_stores import ask, store_of

from posenc.core.seeds import generator_for
from posenc.evaluation.evaluate import protocol_module
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.forward_cache import DRAWS, window_losses
from posenc.evaluation.plans import RecallGrid, windows_of

WINDOWS = [T // 2, T, 3 * T]
SUBJECTS = ["learned", "rope", "alibi", "cope", "rope+dynamic_ntk"]
# protocol, what it is asked for: few targets, each of them costs the slow way a pass
CASES = [
    ("fixed-target", {"max_targets": 24}),
    ("nonoverlapping", {"max_targets": 48}),
    ("nonoverlapping", {"max_targets": 48, "windows": [T // 2, 20, 3 * T]}),  # 20 leaves a rest of 8
    *(("sliding", {"max_targets": 48, "stride": n}) for n in (1, T // 4, 7)),  # 7 leaves a rest of 6
    ("positions", {"max_targets": 96}),
    ("induction", {}),
    ("far-copy", {"max_targets": 80 * 12}),
    ("key-tokens", {"max_targets": 48}),
    ("recall", {"recall": RecallGrid([3, 8, 14, 28], [1, 5], 12)}),
]


@pytest.mark.parametrize(("protocol", "changes"), CASES, ids=str)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_protocol_equals_one_target_at_a_time(subject_of, asked_of, few_sequences, name, protocol, changes):
    encoding, _, extension = name.partition("+")
    subject, module = subject_of(encoding, batch_tokens=200), protocol_module(protocol)
    if extension:
        subject = dataclasses.replace(subject, extension=build_extension({"name": extension}, subject.model))
    asked = asked_of(**{"windows": WINDOWS, **changes})
    plan, passed = module.plan(asked), []
    subject.model.embedding.register_forward_pre_hook(lambda _, args: passed.append(args[0].numel()))
    for window in windows_of(module, asked):
        passed.clear()
        sums = module.measure(subject, plan, window)
        if plan.tokens(window) % window == 0 and not extension:
            assert sum(passed) == plan.tokens(window)  # what a dry run counts
        assert slow_way.furthest(subject, module, plan, window, sums) < 1e-4, window
        assert np.isfinite(sums.nats).all() and sums.targets.sum() >= 10


def test_where_a_document_begins_windows_are_shorter(subject_of):
    """Documents of a single span, which has no text before it, side by side in the store."""
    text = np.random.default_rng(0).integers(97, 123, (4, 65)).tolist()
    subject = subject_of("rope", tokens=store_of(text))
    for module in map(protocol_module, ("sliding", "nonoverlapping", "positions")):
        asked = ask(subject.store, [T, 4 * T])
        plan = module.plan(asked)
        assert (plan.ends == plan.block + 1).all()
        for window in windows_of(module, asked):
            sums = module.measure(subject, plan, window)
            assert slow_way.furthest(subject, module, plan, window, sums) < 1e-4


RANDOMIZED = {"name": "randomized", "max": None, "dense": False}


@pytest.mark.parametrize("window", [T // 2, T, 4 * T])
@pytest.mark.parametrize(("name", "batch"), [("rope", 10**6), ("learned", 3 * T)])
@torch.no_grad()
def test_drawn_positions_are_those_of_the_window(subject_of, name, batch, window):
    """Drawn by seed, length and the window's number, never by the batch."""
    of, targets = subject_of(name, batch_tokens=batch, positions=RANDOMIZED), 4

    def read(i):
        return of.store.tokens[7 * i : 7 * i + window + 1]

    got = window_losses(of, read, 2 * DRAWS + 5, window, targets)
    for i in (0, 1, DRAWS - 1, DRAWS, 2 * DRAWS + 4):
        pos = of.model.eval().positions(window, generator_for(0, "evaluation", window, i % DRAWS))
        text = torch.from_numpy(read(i).astype(np.int64))
        for place in range(targets):
            last = window - targets + place
            logits = of.model(text[None, : last + 1], pos[: last + 1])[0, -1].double()
            want = -logits.log_softmax(-1)[text[last + 1]].item()
            assert got[i, place] == pytest.approx(want, abs=1e-4), (i, place)

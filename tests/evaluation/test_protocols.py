"""Protocols against the slow way: one target at a time."""

import dataclasses

import numpy as np
import pytest
import slow_way
from measuring import SETTINGS, protocol_of
from tiny_model import T
from token_stores import request_for, store_of

from posenc.evaluation.extensions import build_extension

WINDOWS = [T // 2, T, 3 * T]
SUBJECTS = ["learned", "rope", "alibi", "cope", "rope+dynamic_ntk"]
# protocol, what it is asked for: few targets, each of them costs the slow way a pass
CASES = [
    ("fixed-target", {"max_targets": 24}),
    ("nonoverlapping", {"max_targets": 48}),
    # The only case whose spans end with a shorter window: of 48 tokens, 20 leave a rest of 8.
    ("nonoverlapping", {"max_targets": 48, "windows": [T // 2, 20, 3 * T]}),
    *(("sliding", {"max_targets": 48, "stride": n}) for n in (1, T // 4, 7)),  # 7 leaves a rest of 6
    ("positions", {"max_targets": 96}),
    ("dispersion", {"max_targets": 24}),
    ("memory", {"max_targets": 24}),
    ("induction", {}),
    ("far-copy", {"max_targets": 80 * 12}),
    ("key-tokens", {"max_targets": 48}),
    ("recall", {"recall": {"distances": [3, 8, 14, 28], "pairs": [1, 5], "windows": 12}}),
]
EACH_CASE = pytest.mark.parametrize(("name", "changes"), CASES, ids=str)


@pytest.fixture
def planned(asked_of, few_sequences, every_third_is_key):
    """A protocol, its plan and the windows that it measures."""

    def make(name, changes):
        settings = {key: value for key, value in changes.items() if key in SETTINGS}
        of_request = {key: value for key, value in changes.items() if key not in SETTINGS}
        request = asked_of(**{"windows": WINDOWS, **of_request})
        protocol = protocol_of(name, **settings)
        return protocol, protocol.plan(request), protocol.windows(request.lengths)

    return make


@EACH_CASE
@pytest.mark.parametrize("subject_name", SUBJECTS)
def test_a_protocol_equals_one_target_at_a_time(subject_of, planned, subject_name, name, changes):
    encoding, _, extension = subject_name.partition("+")
    subject = subject_of(encoding, batch_tokens=200)
    if extension:
        subject = dataclasses.replace(subject, extension=build_extension({"name": extension}, subject.model))
    protocol, plan, windows = planned(name, changes)
    for window in windows:
        sums = protocol.measure(subject, plan, window)
        assert slow_way.furthest(subject, protocol, plan, window, sums) < 1e-4, window
        assert np.isfinite(sums.nats).all()
        assert sums.targets.sum() >= 10


@EACH_CASE
def test_a_plan_counts_the_tokens_that_go_through_the_model(subject_of, planned, name, changes):
    """A dry run estimates time by them. Of a shorter last window it counts the tokens that it has."""
    subject = subject_of("rope", batch_tokens=200)
    protocol, plan, windows = planned(name, changes)
    passed = []
    subject.model.embedding.register_forward_pre_hook(lambda _, args: passed.append(args[0].numel()))
    for window in windows:
        passed.clear()
        protocol.measure(subject, plan, window)
        assert sum(passed) == plan.tokens(window), window


@EACH_CASE
def test_a_plan_counts_the_targets_of_the_record(subject_of, planned, name, changes):
    subject = subject_of("rope")
    protocol, plan, windows = planned(name, changes)
    for window in windows:
        assert plan.count_targets(window) == protocol.measure(subject, plan, window).targets.sum(), window


@pytest.mark.parametrize("name", ["sliding", "nonoverlapping", "positions"])
def test_where_a_document_begins_windows_are_shorter(subject_of, name):
    """Documents of a single span, which has no text before it, side by side in the store."""
    text = np.random.default_rng(0).integers(97, 123, (4, 65)).tolist()
    subject = subject_of("rope", tokens=store_of(text))
    request = request_for(subject.store, [T, 4 * T])
    protocol = protocol_of(name)
    plan = protocol.plan(request)
    assert (plan.ends == plan.block + 1).all()
    for window in protocol.windows(request.lengths):
        sums = protocol.measure(subject, plan, window)
        assert slow_way.furthest(subject, protocol, plan, window, sums) < 1e-4

"""Protocols against the slow way: one target at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import slow_way
from tiny_model import T
from token_stores import ask, store_of

from posenc.evaluation import far_copy, fixed_target, induction, nonoverlapping, positions, sliding
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.plans import EvalRequest, windows_of

SubjectOf = Callable[..., EvalContext]
AskedOf = Callable[..., EvalRequest]

WINDOWS = [T // 2, T, 3 * T]
SUBJECTS = ["learned", "rope", "alibi", "cope", "rope+dynamic_ntk"]
# protocol, what it is asked for: few targets, each of them costs the slow way a pass
CASES: list[tuple[Any, dict[str, Any]]] = [
    (fixed_target, {"max_targets": 24}),
    (nonoverlapping, {"max_targets": 48}),
    (nonoverlapping, {"max_targets": 48, "windows": [T // 2, 20, 3 * T]}),  # 20 leaves a rest of 8
    (sliding, {"max_targets": 48, "stride": 1}),
    (sliding, {"max_targets": 48, "stride": T // 4}),
    (sliding, {"max_targets": 48, "stride": 7}),  # leaves a rest of 6
    (positions, {"max_targets": 96}),
    (induction, {}),
    (far_copy, {"max_targets": 80 * 12}),
]
NAMES = [f"{module.NAME}-{changes.get('stride', len(changes))}" for module, changes in CASES]


def subject_named(subject_of: SubjectOf, name: str, **more: Any) -> EvalContext:
    """`encoding`, or `encoding+extension`."""
    encoding, _, extension = name.partition("+")
    subject = subject_of(encoding, **more)
    if not extension:
        return subject
    return dataclasses.replace(subject, extension=build_extension({"name": extension}, subject.model))


@pytest.mark.parametrize(("module", "changes"), CASES, ids=NAMES)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_protocol_equals_one_target_at_a_time(
    subject_of: SubjectOf,
    asked_of: AskedOf,
    few_sequences: None,
    name: str,
    module: Any,
    changes: dict[str, Any],
) -> None:
    subject = subject_named(subject_of, name, batch_tokens=200)
    asked = asked_of(**{"windows": WINDOWS, **changes})
    plan = module.plan(asked)
    for window in windows_of(module, asked):
        sums = module.measure(subject, plan, window)
        slow = slow_way.WAYS[module](subject, plan, window)
        assert slow_way.furthest(sums, slow) < 1e-4, window
        assert np.isfinite(sums.nats).all() and sums.targets.sum() >= 10


def test_where_a_document_begins_windows_are_shorter(subject_of: SubjectOf) -> None:
    """Documents of a single span, which has no text before it, side by side in the store."""
    text = np.random.default_rng(0).integers(97, 123, (4, 65)).tolist()
    subject = subject_of("rope", tokens=store_of(text))
    for module in (sliding, nonoverlapping, positions):
        asked = ask(subject.store, [T, 4 * T])
        plan = module.plan(asked)
        assert not getattr(plan, "spans", plan).starts.any()
        for window in windows_of(module, asked):
            sums = module.measure(subject, plan, window)
            assert slow_way.furthest(sums, slow_way.WAYS[module](subject, plan, window)) < 1e-4

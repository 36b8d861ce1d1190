"""memory: next-token distributions in a window against those in its last tokens, by every target alone."""

import dataclasses

import hf_models
import numpy as np
import pytest
import torch
import transformers
from measuring import protocol_of
from scipy.stats import ttest_1samp
from tiny_model import T
from token_stores import request_for, store_in_folders, store_of

from posenc.core.errors import UserError
from posenc.evaluation import passes
from posenc.evaluation.models import callables
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.models.transformers import TransformersModel
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols.memory import interval_of
from posenc.results.statistics.documents import MIN_GROUPS

WINDOWS = [T // 2, T, 2 * T, 4 * T]
SHORTER = [T // 4, T // 2, T]  # as tests/evaluation/measuring.py has them
BLOCK = T // 4
SHORT_REACH = {"attention_options": {"window": 3}}  # two layers: four tokens back
RANDOMIZED = {"positions": {"name": "randomized", "max": None, "dense": False}}
SURE = 50.0  # a logit that leaves nothing to other tokens


def records_of(measured, subject, **changes):
    """Records of memory by window."""
    records = measured(subject, WINDOWS, protocols=["memory"], **{"max_targets": 60, **changes})
    return {window: record for (_, window), record in records.items()}


def longest_of(measured, subject, **changes):
    """What the record of the longest window adds to its loss."""
    return records_of(measured, subject, **changes)[4 * T]["memory"]


# --- a second way: whole distributions in float64


def distributions(subject, stops, window):
    """Probabilities of the targets in windows, (N, BLOCK, V) float64, one window at a time."""
    model = subject.model.eval()
    rows = []
    for i, stop in enumerate(stops):
        inputs = torch.from_numpy(subject.store.tokens[stop - window - 1 : stop - 1].astype(np.int64))[None]
        if isinstance(model, CallableModel):
            logits = model(inputs, BLOCK)
        else:
            encoding = model.effective_encoding
            draws = passes.positions_of_windows(subject, encoding, window, window)
            logits = model(inputs, draws[i % len(draws)])
        rows.append(logits[0, -BLOCK:].double().softmax(-1))
    return torch.stack(rows)


@torch.no_grad()
def by_hand(subject, request):
    """Variation, gains and losses in the longest window by shorter window."""
    plan = protocol_of("memory").plan(request)
    stops = plan.stops(subject)
    targets = np.stack([subject.store.tokens[stop - BLOCK : stop] for stop in stops]).astype(np.int64)
    at_targets = torch.from_numpy(targets)[..., None]
    p = distributions(subject, stops, 4 * T)
    columns = {"variation": [], "gained": [], "lost": []}
    for window in SHORTER:
        q = distributions(subject, stops, window)
        gain = (p - q).gather(-1, at_targets)
        columns["variation"].append(float(torch.clamp(p - q, min=0).sum(-1).mean()))
        columns["gained"].append(float(gain.clamp(min=0).mean()))
        columns["lost"].append(float(-gain.clamp(max=0).mean()))
    return columns


@pytest.mark.parametrize(
    ("name", "params"), [("rope", {}), ("alibi", {}), ("learned", {}), ("rope", RANDOMIZED)], ids=str
)
def test_variation_gains_and_losses_are_those_of_whole_distributions(
    measured, subject_of, asked_of, name, params
):
    subject = subject_of(name, batch_tokens=200, **params)
    memory = longest_of(measured, subject)
    assert memory["window"] == SHORTER
    for key, values in by_hand(subject, asked_of(WINDOWS, max_targets=60)).items():
        assert memory[key] == pytest.approx(values, abs=1e-5), key


def test_a_model_of_transformers_is_compared_in_the_same_way(measured, store, asked_of):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("llama", **(hf_models.SIZES | hf_models.CONFIGS["llama"]))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # or the distributions would hardly differ
    subject = context_of(TransformersModel(model, T), store)
    memory = longest_of(measured, subject)
    assert min(memory["variation"]) > 0.01
    for key, values in by_hand(subject, asked_of(WINDOWS, max_targets=60)).items():
        assert memory[key] == pytest.approx(values, abs=1e-5), key


# --- laws


def context_of(model, store):
    return EvalContext(
        model=model,
        context_length=T,
        seed=0,
        precision="fp32",
        device=torch.device("cpu"),
        store=store,
        split="test",
        batch_tokens=200,
    )


def test_the_loss_is_that_of_fixed_target(measured, subject_of):
    subject = subject_of("rope")
    records = measured(subject, WINDOWS, protocols=["fixed-target", "memory"], max_targets=60)
    for window in WINDOWS:
        assert records["memory", window]["nats"] == pytest.approx(records["fixed-target", window]["nats"])


@pytest.mark.parametrize("name", ["nope", "alibi"])
def test_what_cannot_see_farther_back_than_a_window_has_no_memory_beyond_it(measured, subject_of, name):
    memory = longest_of(measured, subject_of(name, **SHORT_REACH))
    variation = dict(zip(memory["window"], memory["variation"], strict=True))
    assert variation[T // 4] > 1e-3  # the first targets of a block have fewer tokens than it reaches
    assert max(variation[T // 2], variation[T]) < 1e-6


def test_text_that_is_cut_off_past_t_changes_nothing(measured, subject_of):
    memory = longest_of(measured, subject_of("learned", beyond="truncate"))
    assert memory["variation"][-1] == 0


def test_a_model_that_says_always_the_same_has_no_memory(measured, store):
    subject = context_of(CallableModel(lambda tokens: torch.zeros(*tokens.shape, 256), 256, T), store)
    for record in records_of(measured, subject).values():
        assert record["memory"]["variation"] == [0.0] * len(record["memory"]["window"])


def test_distributions_that_share_no_token_have_a_variation_of_one(measured, store):
    def names_the_length(tokens):
        logits = torch.zeros(*tokens.shape, 256)
        logits[..., tokens.shape[1]] = SURE
        return logits

    memory = longest_of(measured, context_of(CallableModel(names_the_length, 256, T), store))
    assert memory["variation"] == pytest.approx([1.0] * len(SHORTER))
    assert max(memory["variation"]) <= 1


@pytest.mark.parametrize(
    ("is_sure", "gained", "lost"),
    [
        (lambda length: length > T, 1 - 1 / 256, 0.0),
        (lambda length: length <= T, 0.0, 1 - 1 / 256),
    ],
    ids=["better", "worse"],
)
def test_the_right_token_gains_where_far_text_helps_and_loses_where_it_harms(measured, is_sure, gained, lost):
    """Text of one letter, which the model is sure of, or knows nothing of."""
    store = store_of([[97] * 200] * 12)

    def says_the_letter(tokens):
        logits = torch.zeros(*tokens.shape, 256)
        logits[..., 97] = SURE if is_sure(tokens.shape[1]) else 0.0
        return logits

    memory = longest_of(measured, context_of(CallableModel(says_the_letter, 256, T), store))
    assert memory["variation"] == pytest.approx([1 - 1 / 256] * len(SHORTER))
    assert memory["gained"] == pytest.approx([gained] * len(SHORTER))
    assert memory["lost"] == pytest.approx([lost] * len(SHORTER))


def test_neither_batches_nor_blocks_of_logits_matter(measured, subject_of, monkeypatch):
    subject = subject_of("rope")
    whole = longest_of(measured, subject)
    monkeypatch.setattr(callables, "LOGITS_AT_ONCE", 256 * 3)
    in_pieces = longest_of(measured, dataclasses.replace(subject, batch_tokens=64))
    for key, values in whole.items():
        assert np.array(in_pieces[key]) == pytest.approx(np.array(values), abs=1e-6), key


def test_the_interval_is_over_documents(measured, subject_of, store):
    memory = longest_of(measured, subject_of("rope"), max_targets=300)
    for value, (low, high) in zip(memory["variation"], memory["variation_ci95"], strict=True):
        assert low < value < high


def test_the_interval_is_over_folders_if_there_are_enough(subject_of):
    n_documents = 2 * MIN_GROUPS
    store = store_in_folders(MIN_GROUPS, n_documents, 4 * T + 1)
    subject = subject_of("rope", tokens=store)
    plan = protocol_of("memory").plan(request_for(store, WINDOWS, max_targets=n_documents * BLOCK))
    assert plan.documents.tolist() == list(range(n_documents))  # a block each
    by_folder = np.random.default_rng(0).random(MIN_GROUPS)
    # All documents of a folder have one value, so counted as independent they would halve the variance.
    values = np.repeat(by_folder[plan.documents % MIN_GROUPS][:, None], BLOCK, axis=1)  # (N, BLOCK)
    expected = ttest_1samp(by_folder, 0).confidence_interval(0.95)
    assert interval_of(subject, plan, values) == pytest.approx([expected.low, expected.high])


# --- what is asked for


def test_t_is_always_among_the_shorter_windows(asked_of):
    plan = protocol_of("memory", memory={"shorter": ["0.5x"]}).plan(asked_of(WINDOWS))
    assert plan.shorter == (T // 2, T)


def test_other_shorter_windows_are_another_measurement(asked_of):
    request = asked_of(WINDOWS)
    other = protocol_of("memory", memory={"shorter": ["0.5x"]})
    assert other.plan(request).hash != protocol_of("memory").plan(request).hash


@pytest.mark.parametrize("window", WINDOWS)
def test_a_plan_counts_the_tokens_of_all_shorter_windows(subject_of, asked_of, windows_passed, window):
    protocol = protocol_of("memory")
    plan = protocol.plan(asked_of(WINDOWS, max_targets=60))
    protocol.measure(subject_of("rope"), plan, window)
    shorter = [length for length in windows_passed if length < window]
    assert plan.tokens_of_other_passes(window) == sum(shorter) > 0


def test_a_window_without_a_shorter_one_says_so(measured, subject_of):
    records = measured(subject_of("rope"), [T // 4, T], protocols=["memory"], max_targets=60)
    assert records["memory", T // 4]["note"] == "n/a: no window of eval.memory.shorter is below 4"


def test_shorter_windows_must_hold_the_targets(asked_of):
    with pytest.raises(UserError, match=r"eval\.memory\.shorter=2: shorter than the target block of 4"):
        protocol_of("memory", memory={"shorter": [2]}).check(asked_of(WINDOWS).lengths)

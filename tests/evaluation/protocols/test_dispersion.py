"""dispersion: the fixed targets with their attention, and the same T tokens with far positions."""

import numpy as np
import pytest
import torch
from measuring import protocol_of
from tiny_model import T

from posenc.core.errors import UserError
from posenc.encodings.base import Shape
from posenc.evaluation.attention import FarApart, far_losses

WINDOWS = [T, 2 * T, 4 * T]
RANDOMIZED = {"name": "randomized", "max": None, "dense": False}


def records_of(measured, subject):
    return measured(subject, WINDOWS, protocols=["fixed-target", "dispersion"], max_targets=60)


def test_its_losses_are_those_of_fixed_target(measured, subject_of):
    records = records_of(measured, subject_of("rope"))
    for window in WINDOWS:
        expected = records["fixed-target", window]["nats"]
        assert records["dispersion", window]["nats"] == pytest.approx(expected, abs=1e-5)


def test_a_record_has_a_number_for_each_layer(measured, subject_of):
    dispersion = records_of(measured, subject_of("alibi"))["dispersion", 4 * T]["dispersion"]
    assert [len(dispersion[key]) for key in ("entropy", "first", "variance")] == [2, 2, 2]


def test_up_to_t_nothing_is_placed_far(measured, subject_of):
    assert records_of(measured, subject_of("rope"))["dispersion", T]["dispersion"]["far_nats"] is None


@pytest.mark.parametrize(("n_targets", "has_far"), [(T // 2, True), (T // 2 + 1, False)])
def test_targets_are_placed_far_if_they_fit_into_half_of_t(measured, subject_of, n_targets, has_far):
    fraction = n_targets / T
    records = measured(subject_of("rope"), WINDOWS, protocols=["dispersion"], target_fraction=fraction)
    far = records["dispersion", 2 * T]["dispersion"]["far_nats"]
    assert (far is not None) == has_far


def test_without_positions_far_ones_change_nothing(measured, subject_of):
    records = records_of(measured, subject_of("nope"))
    far = records["dispersion", 4 * T]["dispersion"]["far_nats"]
    assert far == pytest.approx(records["dispersion", T]["nats"], abs=1e-5)


def test_where_positions_are_drawn_none_is_far(measured, subject_of):
    records = records_of(measured, subject_of("rope", positions=RANDOMIZED))
    assert records["dispersion", 4 * T]["dispersion"]["far_nats"] is None


def test_the_older_half_has_the_first_positions_and_the_other_half_the_last():
    shape = Shape(32, 2, 16, 2, 6)
    positions = FarApart(shape, 40).positions(6, False, torch.Generator())
    assert positions.tolist() == [0, 1, 2, 37, 38, 39]


@pytest.mark.parametrize("name", ["rope", "learned", "alibi"])
@torch.no_grad()
def test_far_losses_are_those_of_the_model_at_these_positions(subject_of, name):
    subject = subject_of(name)
    start = subject.store.splits["test"].starts[0]
    stops = start + 1 + T + np.array([0, 9, 20])
    losses = far_losses(subject, stops, 4 * T, 3)
    pos = torch.tensor([*range(T // 2), *range(4 * T - T // 2, 4 * T)])
    for stop, row in zip(stops, losses, strict=True):
        tokens = torch.from_numpy(subject.store.tokens[stop - T - 1 : stop].astype(np.int64))
        model = subject.model.eval()
        # a hook of positions, or the kernels take them for contiguous ones
        encoding = model.effective_encoding
        if "distance_bias" in encoding.hooks:
            slopes = torch.tensor([2**-4, 2**-8])
            r = (pos[:, None] - pos).clamp_min(0)
            logits = logits_with_bias(model, tokens[None, :-1], -slopes[:, None, None] * r)
        else:
            logits = model(tokens[None, :-1], pos)
        nats = -logits[0].double().log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
        assert row == pytest.approx(nats[-3:].numpy(), abs=1e-4)


def logits_with_bias(model, tokens, bias):
    """Return the logits of plain attention with a bias (H, S, S)."""
    x = model.embedding(tokens)
    causal = torch.ones(bias.shape[1:], dtype=torch.bool).tril()
    mask = bias.masked_fill(~causal, float("-inf"))
    for block in model.blocks:
        heads = block.attention.qkv(block.attention_norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        x = x + block.attention.out(y.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.mlp_norm(x))
    return model.norm(x) @ model.embedding.weight.T


def test_models_that_posenc_did_not_train_are_refused():
    protocol = protocol_of("dispersion")
    assert "weights of the attention" in protocol.reason_against_given_models
    assert protocol.reason_against_transformers == protocol.reason_against_given_models


def test_windows_must_hold_the_targets(asked_of):
    with pytest.raises(UserError, match=r"eval\.lengths"):
        protocol_of("dispersion", target_fraction=0.75).check(asked_of([T // 2, T]).lengths)

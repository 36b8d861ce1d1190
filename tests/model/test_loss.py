"""The loss in blocks of logits, whose gradient is written out, against the plain formula."""

import pytest
import torch
import torch.nn.functional as F
from backward import check_same, drawn, gradients

from posenc.model import loss

TARGETS = torch.arange(9)
VOCABULARY = 11
WEIGHTS = torch.linspace(0, 3, len(TARGETS))  # of the targets


def plain_loss(hidden, weight, targets):
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


def plain_weighted_loss(hidden, weight, targets):
    losses = F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none")
    return (losses * WEIGHTS).mean()


def inputs(dtype):
    return drawn(len(TARGETS), 8, dtype=dtype), drawn(VOCABULARY, 8, dtype=dtype), TARGETS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_and_gradients_are_those_of_the_plain_formula(dtype):
    computed = gradients(loss.next_token_loss, *inputs(dtype))
    check_same(computed, gradients(plain_loss, *inputs(dtype)), dtype)


@pytest.mark.parametrize("largest", [1, 3 * VOCABULARY, 1 << 20])
def test_blocks_of_logits_give_the_same_numbers(largest, monkeypatch):
    monkeypatch.setattr(loss, "MAX_LOGITS", largest)
    computed = gradients(loss.next_token_loss, *inputs(torch.float32))
    check_same(computed, gradients(plain_loss, *inputs(torch.float32)), torch.float32)


@pytest.mark.parametrize("largest", [1, 3 * VOCABULARY, 1 << 20])
def test_weights_of_targets_weigh_the_loss_and_its_gradient(largest, monkeypatch):
    monkeypatch.setattr(loss, "MAX_LOGITS", largest)

    def weighted(hidden, weight, targets):
        mean, _ = loss.weighted_loss(hidden, weight, targets, WEIGHTS)
        return mean

    computed = gradients(weighted, *inputs(torch.float32))
    check_same(computed, gradients(plain_weighted_loss, *inputs(torch.float32)), torch.float32)


@pytest.mark.parametrize("largest", [1, 3 * VOCABULARY, 1 << 20])
def test_no_more_logits_than_allowed_are_made_at_once(largest, monkeypatch):
    monkeypatch.setattr(loss, "MAX_LOGITS", largest)
    sizes = []
    softmax = torch.softmax

    def watched(x, dim):
        sizes.append(x.numel())
        return softmax(x, dim)

    monkeypatch.setattr(torch, "softmax", watched)
    loss.next_token_loss(*inputs(torch.float32))
    assert max(sizes) <= max(largest, VOCABULARY)
    assert sum(sizes) == len(TARGETS) * VOCABULARY


@pytest.mark.parametrize("largest", [1, 3 * VOCABULARY, 1 << 20])
def test_losses_of_single_targets_have_the_mean_of_all(largest, monkeypatch):
    monkeypatch.setattr(loss, "MAX_LOGITS", largest)
    losses = loss.token_losses(*inputs(torch.float32))
    assert losses.shape == TARGETS.shape
    assert torch.allclose(losses.mean(), plain_loss(*inputs(torch.float32)), atol=1e-6)


def test_a_hopeless_target_has_a_finite_loss():
    """Its weight is 0 in float32, its loss 300 nats."""
    hidden, weight = torch.tensor([[300.0]]).requires_grad_(), torch.tensor([[1.0], [0.0]])
    output = loss.next_token_loss(hidden, weight, torch.tensor([1]))
    output.backward()
    assert output.item() == pytest.approx(300)
    assert hidden.grad.item() == pytest.approx(1)


def test_a_second_backward_pass_over_the_same_graph_is_refused():
    """The gradients of the first one have been scaled in place."""
    hidden, weight, targets = inputs(torch.float32)
    doubled = 2 * loss.next_token_loss(hidden.requires_grad_(), weight.requires_grad_(), targets)
    doubled.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        doubled.backward()

"""Statistics of attention: against plain softmax attention in float64, and in cases known by formula."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_model import T

from posenc.core.paths import conf_dir
from posenc.encodings.building import default_parameters
from posenc.evaluation.attention import entropies, watch_windows
from posenc.model.attention import LatentAttention
from posenc.model.kernels import changed_limits

NAMES = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
WINDOW = 3 * T
TARGETS = 5
ALIBI_SLOPES = [2**-4, 2**-8]  # of two heads
LATENT = functools.partial(LatentAttention, kv_rank=20, q_rank=24, rope_dim=16)


def stops_of(store, count=3):
    """Return ends of windows within one document of the store."""
    start = store.splits["test"].starts[0]
    return start + 1 + WINDOW + 11 * np.arange(count)


def watched(subject, window=WINDOW, **options):
    return watch_windows(subject, stops_of(subject.store), window, TARGETS, **options)


def normed(x, norm):
    return (
        x / (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt() * norm.weight.double()
    )


def turned(x, base=10000.0):
    """Return x (H, S, D) with the pairs of even and odd numbers turned, as complex numbers."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    theta = base ** (-torch.arange(pairs.shape[-1], dtype=torch.float64) / pairs.shape[-1])
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * theta
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def plain_layers(model, name, tokens):
    """Return weights (H, S, S) and outputs (H, S, D) of each layer for tokens (S,), all in float64."""
    x = model.embedding.weight.double()[tokens]
    index = torch.arange(len(tokens))
    r = index[:, None] - index
    layers = []
    for block in model.blocks:
        attention = block.attention
        projected = normed(x, block.attention_norm) @ attention.qkv.weight.double().T
        heads = projected.unflatten(-1, (3, attention.n_heads, attention.head_dim))
        q, k, v = heads.permute(1, 2, 0, 3)  # (H, S, D) each
        if name == "rope":
            q = turned(q)
            k = turned(k)
        scores = q @ k.mT / math.sqrt(attention.head_dim)
        if name == "alibi":
            scores = scores - torch.tensor(ALIBI_SLOPES, dtype=torch.float64)[:, None, None] * r
        p = scores.masked_fill(r < 0, -math.inf).softmax(-1)
        y = p @ v
        layers.append((p, y))
        x = x + y.transpose(0, 1).flatten(1) @ attention.out.weight.double().T
        hidden = (normed(x, block.mlp_norm) @ block.mlp.up.weight.double().T).relu().square()
        x = x + hidden @ block.mlp.down.weight.double().T
    return layers


@torch.no_grad()
def plain_statistics(subject, name):
    """Return entropy, weight on the first token, variance and mean weight by distance, a value a layer."""
    windows = []
    for stop in stops_of(subject.store):
        tokens = torch.from_numpy(subject.store.tokens[stop - WINDOW - 1 : stop - 1].astype(np.int64))
        windows.append(plain_layers(subject.model, name, tokens))
    layers = []
    for of_layer in zip(*windows, strict=True):
        p = torch.stack([weights for weights, _ in of_layer])[:, :, -TARGETS:]  # (B, H, T, S)
        y = torch.stack([outputs for _, outputs in of_layer])[:, :, -TARGETS:]  # (B, H, T, D)
        by_distance = np.zeros(WINDOW)
        for query in range(TARGETS):
            for key in range(WINDOW - TARGETS + query + 1):
                by_distance[WINDOW - TARGETS + query - key] += p[:, :, query, key].sum()
        outputs = y.permute(0, 2, 1, 3).flatten(0, 1)  # (B * T, H, D)
        statistics = SimpleNamespace(
            entropy=-torch.xlogy(p, p).sum(-1).mean().item(),
            first=p[..., 0].mean().item(),
            variance=outputs.var(0, correction=0).mean().item(),
            by_distance=by_distance / p[..., 0].numel(),
        )
        layers.append(statistics)
    return layers


@pytest.mark.parametrize("name", ["nope", "alibi", "rope"])
def test_statistics_are_those_of_plain_attention_in_float64(subject_of, name):
    subject = subject_of(name)
    attention = watched(subject, with_distances=True).attention
    for layer, plain in enumerate(plain_statistics(subject, name)):
        assert attention.entropy[layer] == pytest.approx(plain.entropy, rel=1e-4)
        assert attention.first[layer] == pytest.approx(plain.first, rel=1e-4)
        assert attention.variance[layer] == pytest.approx(plain.variance, rel=1e-4)
        assert np.allclose(attention.by_distance[layer], plain.by_distance, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("window", [T, WINDOW])
def test_equal_weights_have_the_entropy_log_n_and_give_the_first_token_1_of_n(subject_of, window):
    subject = subject_of("nope")
    with torch.no_grad():
        for block in subject.model.blocks:
            block.attention.qkv.weight[: subject.model.shape.d_model] = 0  # every query is zero
    attention = watched(subject, window).attention
    keys = np.arange(window - TARGETS + 1, window + 1)
    assert np.allclose(attention.entropy, np.log(keys).mean(), atol=1e-5)
    assert np.allclose(attention.first, (1 / keys).mean(), atol=1e-7)


def test_equal_weights_over_more_keys_have_outputs_that_vary_less(subject_of):
    subject = subject_of("nope")
    with torch.no_grad():
        for block in subject.model.blocks:
            block.attention.qkv.weight[: subject.model.shape.d_model] = 0
    at_t = watched(subject, T).attention.variance[0]
    assert watched(subject, WINDOW).attention.variance[0] < at_t


@pytest.mark.parametrize("name", NAMES)
def test_watching_changes_no_loss_of_any_encoding(subject_of, name):
    subject = subject_of(name, **default_parameters(name))
    seen = watched(subject)
    unseen = subject.text_losses(stops_of(subject.store), WINDOW, TARGETS)
    assert np.allclose(seen.nats, unseen, atol=2e-4)
    statistics = (seen.attention.entropy, seen.attention.first, seen.attention.variance)
    assert all(np.isfinite(values).all() and len(values) == 2 for values in statistics)


@pytest.mark.parametrize(
    "option",
    [
        {"window": T},
        {"scale": "ssmax"},
        *({"normalizer": name} for name in ("sink", "off_by_one", "entmax", "asentmax")),
        *({"gate": name} for name in ("head", "element")),
        {"key_offset": True},
        {"token_shift": True},
        {"output_norm": True},
    ],
    ids=str,
)
def test_watching_changes_no_loss_with_any_option(subject_of, option):
    subject = subject_of("alibi", attention_options=option)
    seen = watched(subject)
    unseen = subject.text_losses(stops_of(subject.store), WINDOW, TARGETS)
    assert np.allclose(seen.nats, unseen, atol=2e-4)
    assert np.isfinite(seen.attention.entropy).all()


def test_latent_attention_is_watched(subject_of):
    subject = subject_of("rope", attention=LATENT)
    seen = watched(subject)
    unseen = subject.text_losses(stops_of(subject.store), WINDOW, TARGETS)
    assert np.allclose(seen.nats, unseen, atol=2e-4)
    assert (seen.attention.entropy > 0).all()


def test_blocks_of_queries_change_nothing(subject_of):
    subject = subject_of("alibi")
    at_once = watched(subject, with_distances=True).attention
    with changed_limits(max_scores=7 * WINDOW):
        in_blocks = watched(subject, with_distances=True).attention
    assert np.allclose(at_once.entropy, in_blocks.entropy)
    assert np.allclose(at_once.variance, in_blocks.variance)
    assert np.allclose(at_once.by_distance, in_blocks.by_distance)


def test_batches_change_nothing(subject_of):
    together = watched(subject_of("rope")).attention
    alone = watched(subject_of("rope", batch_tokens=WINDOW)).attention
    assert np.allclose(together.entropy, alone.entropy)
    assert np.allclose(together.variance, alone.variance)


def test_the_entropy_of_weights_that_sum_to_less_than_one_is_that_of_their_shares():
    weights = torch.tensor([[0.25, 0.25, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert torch.allclose(entropies(weights), torch.tensor([math.log(2), 0.0, 0.0]))

"""`posenc bench --peers`: every peer is a causal model of posenc's size that learns; no times are judged."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys

import pytest
import torch

from posenc.cli.bench import cases, peer_model, training
from posenc.cli.bench_peers import PACKAGES, PEERS, PeerLoss
from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine

SMALL = (
    "model.d_model=32",
    "model.n_layers=2",
    "model.n_heads=2",
    "context_length=16",
    "train.precision=fp32",
)
SETTINGS = (*SMALL, "train.batch_tokens=256", "train.lr=1e-2", "device=cpu")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name.replace("-", "_")) is None for name in PACKAGES),
        reason="needs x-transformers and transformers",
    ),
]


@pytest.fixture(scope="module")
def case():
    (one,) = cases(compose_jobs("train", CommandLine(["encoding=rope", *SETTINGS])).jobs, "none")
    return one


@pytest.mark.parametrize(("peer", "attention"), [(peer, one) for peer in PEERS for one in peer.attentions])
def test_a_peer_is_of_the_same_size_causal_and_learns(peer, attention, case):
    model, ours = peer_model(peer, attention, case), case.model()
    sizes = [sum(p.numel() for p in one.parameters()) for one in (model, ours)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)  # biases, positions; of 27k weights
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9:] += 1
    with torch.no_grad():
        before, after = model.eval()(tokens), model(changed % 256)
    assert before.shape == (2, 16, 256)
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-5)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)
    losses = []
    loss = PeerLoss(model)
    loss.register_forward_hook(lambda module, given, found: losses.append(found.item()))
    work = training(case, model, lambda _: loss)
    for _ in range(20):
        work.run()
    assert 5 < losses[0] < 7 and losses[-1] < losses[0] - 0.5, losses


def test_peers_stand_below_posencs_rows_and_those_not_installed_are_named(posenc, monkeypatch):
    monkeypatch.setitem(sys.modules, "x_transformers", None)  # as if it were not installed
    result = posenc("bench", "--peers", *SETTINGS, "encoding=rope,nope", "--repeats", "3", "--format", "json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document["peers"]["x-transformers"] is None and document["peers"]["transformers"][0].isdigit()
    labels = [cell["label"].partition(",")[0] for cell in document["cells"]]
    there = [peer.name for peer in PEERS if peer.package != "x-transformers"]
    assert labels == ["rope", "nope", *there]
    for cell in document["cells"]:
        assert cell["base"] == "rope" and not cell["evaluation"]
        for phase in ("training", "forward"):
            found = cell[phase]
            pairs = list(zip(found["seconds"], found["base_seconds"], strict=True))
            assert found["tokens"] == 256 and len(pairs) == 3
            assert found["ratio"] == pytest.approx(statistics.median(a / b for a, b in pairs))
    table = posenc("bench", "--peers", *SETTINGS, "encoding=rope", "--repeats", "1")
    assert "not installed here: x-transformers" in " ".join(table.out.split())


def test_a_peer_has_no_lengths_to_evaluate_at(posenc):
    result = posenc("bench", "--peers", *SETTINGS, "--eval-lengths", "1x")
    assert result.code == 2 and "--eval-lengths" in result.err and "--peers" in result.err

"""Losses of models of transformers by a loop over the model itself, on the targets that posenc chooses."""

from dataclasses import dataclass

import hf_models
import numpy as np
import torch
from composed import train_settings

from posenc.data import prepare
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.request import EvalRequest
from posenc.settings.tree import TokenizerSettings

T = hf_models.T


@dataclass(frozen=True)
class TargetWindows:
    """The texts of all fixed targets, (N, window + 1) tokens, and how many of the last are targets."""

    tokens: torch.Tensor
    block: int


def target_windows(path, corpus, window):
    """Return the text before and of every fixed target, with the tokenizer of a checkpoint."""
    data = train_settings("data=files", f"data.paths={corpus}").data
    tokenizer = TokenizerSettings.model_validate({"name": "hf", "path": str(path), "revision": "main"})
    store = prepare(data, tokenizer)
    lengths = EvalLengths.of([T, 2 * T, 8 * T], T)
    protocol = FixedTarget(FixedTarget.Settings(target_fraction=0.25))
    plan = protocol.plan(EvalRequest(store=store, split="test", lengths=lengths, max_targets=200))
    stops = store.splits["test"].starts[plan.documents] + plan.ends
    rows = np.stack([store.tokens[stop - window - 1 : stop] for stop in stops]).astype(np.int64)
    return TargetWindows(torch.from_numpy(rows), plan.block)


def loss_by_hand(model, windows, bos=None):
    """Return the mean loss of the targets by a loop over the model itself.

    The last token is no input: a scale may depend on the number of inputs.
    """
    inputs = windows.tokens[:, :-1].clone()
    targets = windows.tokens[:, -windows.block :]
    if bos is not None:
        inputs[:, 0] = bos
    with torch.no_grad():
        logits = torch.cat([model(rows).logits[:, -windows.block :].float() for rows in inputs.split(16)])
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))

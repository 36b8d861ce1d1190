"""Why some encodings of the study lose beyond T: trained models, altered at one place, measured again.

    python scripts/docs/causes.py runs/reference/fire-nano-T64-s0-* runs/reference/t5-nano-T64-s0-* ...
writes docs/records/study/causes.json, which docs/study-first.md shows as a table: nats per token on a quarter
of the test targets, spread over the documents. Nothing is trained. The run of another base:
    posenc train experiment=reference encoding=scale_invariant encoding.base=16
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.data import prepare
from posenc.encodings.building import default_parameters
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.request import EvalRequest
from posenc.running.model_parts import build_model
from posenc.running.stored_run import StoredRun, stored_run
from posenc.training.checkpoint import load_weights

TARGETS = 8000
OUT = Path(__file__).parents[2] / "docs" / "records" / "study" / "causes.json"
MULTIPLES = (1, 2, 4, 8)
NEAR = 16  # keys
SHUT = -1e4  # a score that leaves nothing of its key


def as_trained(encoding: Any) -> None:
    """Change nothing."""


def bias_without_far_keys(encoding: Any) -> None:
    """Shut out distances of T and more."""
    trained_bias = encoding.bias
    train_length = encoding.shape.train_length

    def bias(q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        is_far = q_pos[:, None] - k_pos[None, :] >= train_length
        return trained_bias(q_pos, k_pos, layer).masked_fill(is_far, SHUT)

    encoding.bias = bias


def capped_bias(encoding: Any) -> None:
    """Give queries past T the bias of the last trained position, and keys beyond that of its farthest key."""
    trained_bias = encoding.bias
    train_length = encoding.shape.train_length

    def bias(q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        trained_pos = torch.arange(train_length, device=q_pos.device)
        table = trained_bias(trained_pos, trained_pos, layer)  # (H, T, T)
        query = q_pos.clamp_max(train_length - 1)[:, None]
        distance = (q_pos[:, None] - k_pos[None, :]).clamp_min(0)
        return table[:, query, (query - distance).clamp_min(0)]  # (H, T, S)

    encoding.bias = bias


def capped_bias_of(near: bool) -> Callable[[Any], None]:
    """Cap the bias for the 16 nearest keys only, or for all others only; leave the rest as trained."""

    def alter(encoding: Any) -> None:
        trained_bias = encoding.bias
        capped_bias(encoding)
        bias_with_cap = encoding.bias

        def bias(q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
            is_near = q_pos[:, None] - k_pos[None, :] < NEAR  # (T, S)
            is_capped = is_near if near else ~is_near
            capped = bias_with_cap(q_pos, k_pos, layer)
            return torch.where(is_capped, capped, trained_bias(q_pos, k_pos, layer))

        encoding.bias = bias

    return alter


def last_bucket(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """Replace T5's last bucket by a change of its table (H, buckets)."""

    def alter(encoding: Any) -> None:
        encoding.table.data[:, -1] = change(encoding.table.data)

    return alter


def scores_without_far_keys(encoding: Any) -> None:
    """Shut out distances of T and more."""
    trained_scores = encoding.scores
    train_length = encoding.shape.train_length

    def scores(
        s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        is_far = q_pos[:, None] - k_pos[None, :] >= train_length
        return trained_scores(s, q, k, q_pos, k_pos, state, layer).masked_fill(is_far, SHUT)  # (B, H, T, S)

    encoding.scores = scores


def capped_scores(encoding: Any) -> None:
    """Give longer distances the scale and the offset of the longest trained one; leave angles as they are."""
    trained_scores = encoding.scores
    train_length = encoding.shape.train_length

    def scores(
        s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        nearer_keys = torch.maximum(k_pos[None, :], q_pos[:, None] - (train_length - 1))  # (T, S)
        rows = []
        for i in range(len(q_pos)):  # each query has other key positions
            one_query = slice(i, i + 1)
            row = trained_scores(s[..., one_query, :], q, k, q_pos[one_query], nearer_keys[i], state, layer)
            rows.append(row)
        return torch.cat(rows, dim=-2)  # (B, H, T, S)

    encoding.scores = scores


def penalty_without_far_keys(flattest: bool | None = None) -> Callable[[Any], None]:
    """Shut out distances of T and more: in all heads, in the one of least penalty at T, or in the others."""

    def alter(encoding: Any) -> None:
        trained_bias = encoding.distance_bias
        train_length = encoding.shape.train_length

        def distance_bias(r: Tensor, layer: int) -> Tensor:
            # The bias is a penalty, so that the flattest head has the largest bias at T.
            at_t = trained_bias(torch.tensor([train_length], device=r.device), layer)[:, 0]  # (H,)
            is_flattest = torch.arange(len(at_t), device=r.device) == at_t.argmax()  # (H,)
            is_altered = torch.ones_like(is_flattest) if flattest is None else is_flattest == flattest
            is_shut = is_altered[:, None] & (r >= train_length)  # (H, R)
            return trained_bias(r, layer).masked_fill(is_shut, SHUT)

        encoding.distance_bias = distance_bias

    return alter


ALTERED: dict[str, dict[str, Callable[[Any], None]]] = {
    "fire": {
        "as trained": as_trained,
        "keys T or more back shut out": bias_without_far_keys,
        "positions and distances capped at T - 1": capped_bias,
        "capped for the 16 nearest keys only": capped_bias_of(near=True),
        "capped for all but the 16 nearest": capped_bias_of(near=False),
    },
    "kerple_power": {
        "as trained": as_trained,
        "keys T or more back shut out": penalty_without_far_keys(),
        "only in the head whose penalty is least at T": penalty_without_far_keys(flattest=True),
        "only in all other heads": penalty_without_far_keys(flattest=False),
    },
    "t5": {
        "as trained": as_trained,
        "last bucket at the mean of the six before it": last_bucket(lambda table: table[:, -7:-1].mean(1)),
        "last bucket lowered by log(90), since 90 times as many keys share it at 8T": last_bucket(
            lambda table: table[:, -1] - math.log(90)
        ),
        "last bucket shut": last_bucket(lambda table: torch.full_like(table[:, -1], SHUT)),
    },
    "scale_invariant": {
        "as trained": as_trained,
        "keys T or more back shut out": scores_without_far_keys,
        "scale and offset capped at the distance T - 1": capped_scores,
    },
}


def row_of(run: StoredRun) -> str:
    """Return the encoding's name, its settings that are not those of conf/, and a seed that is not 0."""
    settings = run.settings.encoding.plain()
    name = settings["name"]
    defaults = {"name": name, **default_parameters(name)}
    parts = [name]
    parts += [f"{key}={value}" for key, value in settings.items() if defaults.get(key) != value]
    if run.settings.seed != 0:
        parts.append(f"seed {run.settings.seed}")
    return " ".join(parts)


def losses(run: StoredRun, alter: Callable[[Any], None]) -> list[float]:
    """Return nats per token at each multiple of T."""
    train_length = run.settings.context_length
    store = prepare(run.settings.data, run.settings.tokenizer)
    model = build_model(run.settings, run.shape, store.vocab_size)
    load_weights(run.checkpoint, model)
    alter(model.encoding)
    windows = [multiple * train_length for multiple in MULTIPLES]
    protocol = FixedTarget(FixedTarget.Settings(target_fraction=0.25))
    lengths = EvalLengths.of(windows, train_length)
    plan = protocol.plan(EvalRequest(store=store, split="test", lengths=lengths, max_targets=TARGETS))
    context = EvalContext(
        model=model.eval(),
        context_length=train_length,
        seed=0,
        precision="fp32",
        device=torch.device("cpu"),
        store=store,
        split="test",
        batch_tokens=4096,
    )
    losses_by_window = []
    for window in windows:
        sums = protocol.measure(context, plan, window)
        losses_by_window.append(float(sums.nats.sum() / sums.targets.sum()))
    return losses_by_window


def main() -> None:
    """Write the file; the rows of other runs stay in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run directories of " + ", ".join(ALTERED))
    runs = [stored_run(directory, []) for directory in parser.parse_args().runs]
    names = [run.settings.encoding.name for run in runs]
    unknown = sorted(set(names) - set(ALTERED))
    if unknown:
        parser.error(f"only {', '.join(ALTERED)}: {', '.join(unknown)}")
    document = json.loads(OUT.read_text()) if OUT.is_file() else {}
    for name, run in zip(names, runs, strict=True):
        row = row_of(run)
        document[row] = {}
        for alteration, alter in ALTERED[name].items():
            document[row][alteration] = [round(loss, 4) for loss in losses(run, alter)]
            print(row, alteration, document[row][alteration], flush=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

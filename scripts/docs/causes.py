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
from posenc.encodings.registry import default_parameters
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
    """No change."""


def bias_without_far_keys(encoding: Any) -> None:
    """Distances of T and more shut out."""
    given, reach = encoding.bias, encoding.shape.train_length

    def bias(q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return given(q_pos, k_pos, layer).masked_fill(q_pos[:, None] - k_pos[None, :] >= reach, SHUT)

    encoding.bias = bias


def capped_bias(encoding: Any) -> None:
    """Past T the bias of the last trained position, and its farthest key's for all keys beyond."""
    given, reach = encoding.bias, encoding.shape.train_length

    def bias(q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        trained = torch.arange(reach, device=q_pos.device)
        table = given(trained, trained, layer)  # (H, T, T)
        query = q_pos.clamp_max(reach - 1)[:, None]
        distance = (q_pos[:, None] - k_pos[None, :]).clamp_min(0)
        return table[:, query, (query - distance).clamp_min(0)]  # (H, T, S)

    encoding.bias = bias


def capped_bias_of(near: bool) -> Callable[[Any], None]:
    """The capped bias for the 16 nearest keys only, or for all others only; the rest as trained."""

    def alter(encoding: Any) -> None:
        given = encoding.bias
        capped_bias(encoding)
        capped = encoding.bias

        def bias(q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
            chosen = (q_pos[:, None] - k_pos[None, :] < NEAR) == near  # (T, S)
            return torch.where(chosen, capped(q_pos, k_pos, layer), given(q_pos, k_pos, layer))

        encoding.bias = bias

    return alter


def last_bucket(change: Callable[[Tensor], Tensor]) -> Callable[[Any], None]:
    """T5's last bucket, made of its table (H, buckets)."""

    def alter(encoding: Any) -> None:
        encoding.table.data[:, -1] = change(encoding.table.data)

    return alter


def scores_without_far_keys(encoding: Any) -> None:
    """Distances of T and more shut out."""
    given, reach = encoding.scores, encoding.shape.train_length

    def scores(
        s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        far = q_pos[:, None] - k_pos[None, :] >= reach
        return given(s, q, k, q_pos, k_pos, state, layer).masked_fill(far, SHUT)  # (B, H, T, S)

    encoding.scores = scores


def capped_scores(encoding: Any) -> None:
    """The scale and the offset of the longest trained distance for all longer ones; angles as they are."""
    given, reach = encoding.scores, encoding.shape.train_length

    def scores(
        s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        nearer = torch.maximum(k_pos[None, :], q_pos[:, None] - (reach - 1))  # (T, S)
        rows = [
            given(s[..., i : i + 1, :], q, k, q_pos[i : i + 1], nearer[i], state, layer)
            for i in range(len(q_pos))
        ]
        return torch.cat(rows, dim=-2)  # (B, H, T, S)

    encoding.scores = scores


def penalty_without_far_keys(flattest: bool | None = None) -> Callable[[Any], None]:
    """Distances of T and more shut out: in all heads, in the one of least penalty at T, in the others."""

    def alter(encoding: Any) -> None:
        given, reach = encoding.distance_bias, encoding.shape.train_length

        def distance_bias(r: Tensor, layer: int) -> Tensor:
            at_t = given(torch.tensor([reach], device=r.device), layer)[:, 0]  # (H,)
            heads = torch.arange(len(at_t), device=r.device) == at_t.argmax()  # (H,)
            heads = torch.ones_like(heads) if flattest is None else heads == flattest
            return given(r, layer).masked_fill(heads[:, None] & (r >= reach), SHUT)  # (H, R)

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
    """The encoding's name, its settings that are not those of conf/, and the seed where it is not 0."""
    settings = run.settings.encoding.plain()
    usual = {"name": settings["name"], **default_parameters(settings["name"])}
    changed = [f"{key}={value}" for key, value in settings.items() if usual.get(key) != value]
    seed = [f"seed {run.settings.seed}"] if run.settings.seed else []
    return " ".join([settings["name"], *changed, *seed])


def losses(run: StoredRun, alter: Callable[[Any], None]) -> list[float]:
    """Nats per token at each multiple of T."""
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
    sums = [protocol.measure(context, plan, window) for window in windows]
    return [float(one.nats.sum() / one.targets.sum()) for one in sums]


def main() -> None:
    """Write the file; what is not asked for stays in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run directories of " + ", ".join(ALTERED))
    runs = [stored_run(directory, []) for directory in parser.parse_args().runs]
    names = [run.settings.encoding.name for run in runs]
    if unknown := sorted(set(names) - set(ALTERED)):
        parser.error(f"only {', '.join(ALTERED)}: {', '.join(unknown)}")
    found = json.loads(OUT.read_text()) if OUT.is_file() else {}
    for name, run in zip(names, runs, strict=True):
        row = row_of(run)
        found[row] = {}
        for what, alter in ALTERED[name].items():
            found[row][what] = [round(loss, 4) for loss in losses(run, alter)]
            print(row, what, found[row][what], flush=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

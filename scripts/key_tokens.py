"""Write which fixed targets are key tokens by a run trained at long windows (protocol key-tokens).

    posenc train encoding=rope context_length=512 optim=muon train.lr=5e-3
    python scripts/key_tokens.py RUN_DIR                for eval.key_tokens=RUN_DIR
    python scripts/key_tokens.py RUN_DIR --ship         the file that comes with posenc
The key tokens of T are those of windows of T against 8T, for the targets of the asked settings. With one
thread a plan of 32,000 targets takes about a minute.
"""

from __future__ import annotations

import argparse
import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posenc.data import inspect, prepare
from posenc.evaluation import fixed_target, key_tokens
from posenc.evaluation.forward_cache import EvalContext, text_losses
from posenc.evaluation.plans import Blocks, EvalRequest
from posenc.results.load import load_run
from posenc.running.eval_job import load_model, stored_run


def keys_of(context: EvalContext, blocks: Blocks, near: int, far: int) -> np.ndarray:
    """Return which targets the model predicts clearly better in `far` tokens: (N, block) bool."""
    ends = context.starts[blocks.documents] + blocks.ends
    short, long = (text_losses(context, ends, window, blocks.block) for window in (near, far))
    keys: np.ndarray = (short - long > key_tokens.GAIN) & (long < key_tokens.CLEAR)
    return keys


def entry_of(context: EvalContext, request: EvalRequest) -> dict[str, Any]:
    """Return what the file holds of one plan of fixed-target, by the long-trained model of `context`."""
    blocks = fixed_target.plan(request)
    keys = keys_of(context, blocks, request.base, min(request.longest, context.train_length))
    of = (request.store.fingerprint, request.split, request.base, blocks.block)
    known = dict(zip(key_tokens.OF, (*of, request.longest, request.max_targets), strict=True))
    name, count = request.store.tokenizer["name"], int(keys.sum())
    hashed = {"targets_hash": blocks.hash, "count": count, "keys": encoded(keys)}
    return {**known, "tokenizer": name, **hashed}


def encoded(keys: np.ndarray) -> str:
    """Return bits as text."""
    return base64.b64encode(zlib.compress(np.packbits(keys).tobytes(), 9)).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", help="directory of the long-trained run")
    parser.add_argument("--base-length", type=int, help="T; default: an eighth of the run's")
    parser.add_argument("--max-targets", type=int, nargs="+", default=[4000, 8000, 16000, 32000])
    parser.add_argument("--target-fraction", type=float, default=0.25)
    parser.add_argument("--split", default="test")
    parser.add_argument("--ship", action="store_true", help="write posenc's own file")
    asked = parser.parse_args()
    stored = stored_run(asked.run, [])
    settings, length = stored.settings, stored.settings["context_length"]
    base = asked.base_length or length // 8
    facts = inspect(
        settings["data"],
        settings["tokenizer"],
        splits=[asked.split],
        needed_tokens=length + 1,
        context_length=None,
    )
    store = prepare(settings["data"], settings["tokenizer"], facts=facts)
    context = EvalContext(
        model=load_model(stored),
        train_length=length,
        seed=settings["seed"],
        precision="fp32",
        device=torch.device("cpu"),
        store=store,
        split=asked.split,
        batch_tokens=8192,
    )
    entries = []
    for max_targets in asked.max_targets:
        request = EvalRequest(
            store=store,
            split=asked.split,
            windows=[base, length],
            train_length=base,
            target_fraction=asked.target_fraction,
            max_targets=max_targets,
            stride=base,
        )
        entries.append(entry_of(context, request))
        print(f"max_targets {max_targets}: {entries[-1]['count']} key tokens", flush=True)
    facts_of = load_run(stored.directory).facts or {}
    named = ("encoding", "model", "corpus", "context_length", "tokens", "seed", "precision")
    reference = {key: facts_of.get(key) for key in named} | {"optim": settings["optim"]["name"]}
    made = {"reference": reference, "gain": key_tokens.GAIN, "clear": key_tokens.CLEAR, "entries": entries}
    path = key_tokens.SHIPPED if asked.ship else Path(asked.run) / key_tokens.FILE
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

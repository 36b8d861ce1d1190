"""Write which fixed targets are key tokens by a run trained at long windows (protocol key-tokens).

    posenc train encoding=rope context_length=512 optim=muon train.lr=5e-3
    python scripts/key_tokens.py RUN_DIR                for eval.key_tokens=RUN_DIR
    python scripts/key_tokens.py RUN_DIR --ship         the file that comes with posenc
The key tokens of T are those of windows of T against 8T, for the targets that the options choose. With one
thread a plan of 32,000 targets takes about a minute.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from posenc.data import inspect, prepare
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols import key_tokens
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.protocols.key_tokens import Reference, find_keys, packed_keys
from posenc.evaluation.request import EvalRequest
from posenc.results.runs import load_run
from posenc.running.stored_run import load_model, stored_run


def reference_of(context: EvalContext, request: EvalRequest, target_fraction: float) -> Reference:
    """Return the key tokens of one plan of fixed-target, by the long-trained model of `context`."""
    protocol = FixedTarget(FixedTarget.Settings(target_fraction=target_fraction))
    blocks = protocol.plan(request)
    far = min(request.lengths.longest, context.context_length)
    is_key = find_keys(context, blocks, request.lengths.base_length, far)
    return Reference(
        fingerprint=request.store.fingerprint,
        split=request.split,
        base=request.lengths.base_length,
        block=blocks.block,
        longest=request.lengths.longest,
        max_targets=request.max_targets,
        tokenizer=request.store.tokenizer["name"],
        targets_hash=blocks.hash,
        count=int(is_key.sum()),
        keys=packed_keys(is_key),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", help="directory of the long-trained run")
    parser.add_argument("--base-length", type=int, help="T; default: an eighth of the run's")
    parser.add_argument("--max-targets", type=int, nargs="+", default=[4000, 8000, 16000, 32000])
    parser.add_argument("--target-fraction", type=float, default=0.25)
    parser.add_argument("--split", default="test")
    parser.add_argument("--ship", action="store_true", help="write posenc's own file")
    arguments = parser.parse_args()
    stored = stored_run(arguments.run, [])
    settings = stored.settings
    length = settings.context_length
    base = arguments.base_length or length // 8
    facts = inspect(
        settings.data,
        settings.tokenizer,
        splits=[arguments.split],
        needed_tokens=length + 1,
        context_length=None,
    )
    store = prepare(settings.data, settings.tokenizer, facts=facts)
    context = EvalContext(
        model=load_model(settings, stored.shape, stored.checkpoint),
        context_length=length,
        seed=settings.seed,
        precision="fp32",
        device=torch.device("cpu"),
        store=store,
        split=arguments.split,
        batch_tokens=8192,
    )
    lengths = EvalLengths.of([base, length], base)
    entries = []
    for max_targets in arguments.max_targets:
        request = EvalRequest(store=store, split=arguments.split, lengths=lengths, max_targets=max_targets)
        reference = reference_of(context, request, arguments.target_fraction)
        entries.append(reference.model_dump())
        print(f"max_targets {max_targets}: {reference.count} key tokens", flush=True)
    run_facts = load_run(stored.directory).facts or {}
    names = ("encoding", "model", "corpus", "context_length", "tokens", "seed", "precision")
    model = {name: run_facts.get(name) for name in names} | {"optim": settings.optim.name}
    document = {"reference": model, "gain": key_tokens.GAIN, "clear": key_tokens.CLEAR, "entries": entries}
    path = key_tokens.SHIPPED if arguments.ship else Path(arguments.run) / key_tokens.FILE
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

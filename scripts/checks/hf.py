"""Measure seven architectures of transformers by posenc and by a loop over the model; what naive ways give.

python scripts/checks/hf.py FOLDER [SECONDS]: each is trained on SymPy for so long (60) by transformers, saved
to FOLDER, and read from there by both. Then the traps, the wrong number beside posenc's, and the cost of a
model of 10M parameters at 8T. The folder is kept: a second call trains nothing.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import sympy
import torch
import transformers

import posenc
from posenc.data import prepare
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.request import EvalRequest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
import hf_models

T = 64
TARGETS = 2000
SIZES: dict[str, dict[str, Any]] = {
    name: {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "max_position_embeddings": T}
    for name in ("llama", "qwen2", "gemma2", "gpt_neox")
}
SIZES["gemma2"] |= {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 48}
SIZES["gpt2"] = {"n_embd": 128, "n_layer": 4, "n_positions": 8 * T + 1}
SIZES["bloom"] = {"hidden_size": 128, "n_layer": 4}
SIZES["mpt"] = {"d_model": 128, "n_layers": 4, "max_seq_len": T}
ASKED = {"eval": {"lengths": ["1x", "2x", "8x"], "max_targets": TARGETS, "protocols": ["fixed-target"]}}
load = transformers.AutoModelForCausalLM.from_pretrained


def ours(path: Path, window: int, **more: Any) -> float:
    run = posenc.evaluate(
        "hf", **{"subject.path": path, "context_length": T, "device": "cpu", **ASKED, **more}
    )
    extend = more.get("extend")
    return next(
        r["nats"] for r in run.records if r["window"] == window and (r["extend"] or {}).get("name") == extend
    )


def texts(path: Path, window: int) -> tuple[torch.Tensor, int]:
    """Return the inputs and targets of posenc's windows, (N, window + 1), and how many are targets."""
    run = posenc.evaluate("hf", **{"subject.path": path, "context_length": T, "device": "cpu", **ASKED})
    store = prepare(run.settings.data, run.settings.tokenizer)
    lengths = EvalLengths.of([T, 2 * T, 8 * T], T)
    protocol = FixedTarget(FixedTarget.Settings(target_fraction=0.25))
    plan = protocol.plan(EvalRequest(store=store, split="test", lengths=lengths, max_targets=TARGETS))
    stops = store.splits["test"].starts[plan.documents] + plan.ends
    rows = np.stack([store.tokens[stop - window - 1 : stop] for stop in stops]).astype(np.int64)
    return torch.from_numpy(rows), plan.block


@torch.no_grad()
def loop(model: Any, tokens: torch.Tensor, block: int) -> float:
    """Ten lines that anybody would write: `model(...).loss` with all labels masked but the targets'."""
    labels = torch.full_like(tokens, -100)
    labels[:, -block:] = tokens[:, -block:]
    return float(
        np.mean([float(model(t[None], labels=own[None]).loss) for t, own in zip(tokens, labels, strict=True)])
    )


def trained(name: str, folder: Path, seconds: float, **sizes: Any) -> Path:
    if not folder.exists():
        files = sorted(Path(sympy.__file__).parent.rglob("*.py"))
        text = b"".join(file.read_bytes() for file in files if "tests" not in file.parts)[:4_000_000]
        model = hf_models.trained(name, text, steps=10**9, length=T, seconds=seconds, **sizes)
        hf_models.save(model, folder)
    return folder


def main() -> None:
    folder, seconds = Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    print(f"{'architecture':14}{'window':>7}{'posenc':>9}{'loop':>9}{'difference':>12}")
    for name, sizes in SIZES.items():
        path = trained(name, folder / name, seconds, **sizes)
        model: Any = load(path)
        for window in (T, 8 * T):
            if name == "mpt":
                model.config.max_seq_len = window + 1
            tokens, block = texts(path, window)
            found, other = ours(path, window), loop(model, tokens, block)
            print(f"{name:14}{window:7}{found:9.4f}{other:9.4f}{found - other:12.1e}", flush=True)
    llama, far = folder / "llama", 8 * T
    tokens, block = texts(llama, far)
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": T}
    print(f"\n{'trap':58}{'naive':>8}{'posenc':>8}")

    def trap(what: str, naive: float, right: float) -> None:
        print(f"{what:58}{naive:8.4f}{right:8.4f}", flush=True)

    trap(
        "rope dictionary without its base (YaRN at 8T)",
        loop(load(llama, rope_parameters=yarn | {"rope_theta": 1e4}), tokens, block),
        ours(llama, far, extend="yarn"),
    )
    model = load(llama)
    model.config.rope_parameters = {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0}
    trap(
        "rope settings changed after loading (PI at 8T)",
        loop(model, tokens, block),
        ours(llama, far, extend="pi"),
    )
    scaled = load(llama, rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0})
    dynamic = folder / "dynamic"
    if not dynamic.exists():
        hf_models.save(scaled, dynamic)
    used: Any = load(dynamic)
    with torch.no_grad():
        used(tokens[:1])
    short, _ = texts(dynamic, 2 * T)
    trap("dynamic NTK at 2T, after a text of 8T", loop(used, short, block), ours(dynamic, 2 * T))
    for name in ("bloom", "mpt"):
        rounded: Any = load(folder / name, dtype=torch.bfloat16)
        rounded.config.max_seq_len = far + 1
        trap(
            f"{name} in bf16 at 8T",
            loop(rounded, texts(folder / name, far)[0], block),
            ours(folder / name, far),
        )
    kept = torch.cat(
        [load(llama)(t[None], logits_to_keep=block).logits for t in tokens[:, -T - 1 :]]
    ).detach()
    naive = torch.nn.functional.cross_entropy(kept[:, :-1].flatten(0, 1), tokens[:, -block:-1].flatten())
    trap("logits_to_keep, then the usual shift (at T)", float(naive), ours(llama, T))
    trap(
        "BOS left out of Gemma, which was trained with one (at T)",
        ours(folder / "gemma2", T),
        ours(folder / "gemma2", T, **{"subject.bos": True}),
    )

    sizes = {
        "hidden_size": 320,
        "intermediate_size": 1152,
        "num_hidden_layers": 7,
        "max_position_embeddings": 256,
    }
    big = trained("llama", folder / "10M", 1.0, **sizes)
    count = sum(one.numel() for one in load(big).parameters())
    began = time.monotonic()
    more = {"lengths": ["8x"], "max_targets": 32_000, "protocols": ["fixed-target"]}
    posenc.evaluate("hf", **{"subject.path": big, "context_length": 256, "device": "cpu", "eval": more})
    peak, took = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.monotonic() - began
    print(f"\n{count:,} parameters at 8T = 2048: {took:.0f} s, peak of the process {peak:,.0f} MB")


if __name__ == "__main__":
    main()

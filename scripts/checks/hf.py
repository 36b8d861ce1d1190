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
import torch.nn.functional as F
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
# GPT-2 has a table of positions, and the loop gives it the last target as an input, too.
SIZES["gpt2"] = {"n_embd": 128, "n_layer": 4, "n_positions": 8 * T + 1}
SIZES["bloom"] = {"hidden_size": 128, "n_layer": 4}
SIZES["mpt"] = {"d_model": 128, "n_layers": 4, "max_seq_len": T}
ASKED = {"eval": {"lengths": ["1x", "2x", "8x"], "max_targets": TARGETS, "protocols": ["fixed-target"]}}
load = transformers.AutoModelForCausalLM.from_pretrained


def ours(path: Path, window: int, **overrides: Any) -> float:
    settings = {"subject.path": path, "context_length": T, "device": "cpu", **ASKED, **overrides}
    run = posenc.evaluate("hf", **settings)
    for record in run.records:
        extension = record["extend"] or {}
        if record["window"] == window and extension.get("name") == overrides.get("extend"):
            return record["nats"]
    raise LookupError(f"{path.name}: nothing was measured at {window} tokens")


def texts(path: Path, window: int) -> tuple[torch.Tensor, int]:
    """Return the inputs and targets of posenc's windows, (N, window + 1), and how many are targets."""
    run = posenc.evaluate("hf", **{"subject.path": path, "context_length": T, "device": "cpu", **ASKED})
    settings = run.run.settings
    assert settings is not None
    store = prepare(settings.data, settings.tokenizer)
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
    losses = []
    for row, row_labels in zip(tokens, labels, strict=True):
        output = model(row[None], labels=row_labels[None])
        losses.append(float(output.loss))
    return float(np.mean(losses))


def trained(name: str, folder: Path, seconds: float, **sizes: Any) -> Path:
    if not folder.exists():
        files = sorted(Path(sympy.__file__).parent.rglob("*.py"))
        text = b"".join(file.read_bytes() for file in files if "tests" not in file.parts)[:4_000_000]
        model = hf_models.trained(name, text, steps=10**9, length=T, seconds=seconds, **sizes)
        hf_models.save(model, folder)
    return folder


def compare_architectures(folder: Path, seconds: float) -> None:
    """Print the loss of each architecture by posenc and by the loop, at T and at 8T."""
    print(f"{'architecture':14}{'window':>7}{'posenc':>9}{'loop':>9}{'difference':>12}")
    for name, sizes in SIZES.items():
        path = trained(name, folder / name, seconds, **sizes)
        model: Any = load(path)
        for window in (T, 8 * T):
            if name == "mpt":
                model.config.max_seq_len = window + 1
            tokens, block = texts(path, window)
            by_posenc = ours(path, window)
            by_loop = loop(model, tokens, block)
            difference = by_posenc - by_loop
            print(f"{name:14}{window:7}{by_posenc:9.4f}{by_loop:9.4f}{difference:12.1e}", flush=True)


def print_trap(what: str, naive: float, right: float) -> None:
    print(f"{what:58}{naive:8.4f}{right:8.4f}", flush=True)


def show_rope_traps(folder: Path) -> None:
    """Print what changed rope settings give when they are not what they seem."""
    llama = folder / "llama"
    far = 8 * T
    tokens, block = texts(llama, far)
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": T}
    without_base = load(llama, rope_parameters={**yarn, "rope_theta": 1e4})
    print_trap(
        "rope dictionary without its base (YaRN at 8T)",
        loop(without_base, tokens, block),
        ours(llama, far, extend="yarn"),
    )
    changed = load(llama)
    changed.config.rope_parameters = {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0}
    print_trap(
        "rope settings changed after loading (PI at 8T)",
        loop(changed, tokens, block),
        ours(llama, far, extend="pi"),
    )
    dynamic = folder / "dynamic"
    if not dynamic.exists():
        parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}
        hf_models.save(load(llama, rope_parameters=parameters), dynamic)
    used: Any = load(dynamic)
    with torch.no_grad():
        used(tokens[:1])
    short, _ = texts(dynamic, 2 * T)
    print_trap("dynamic NTK at 2T, after a text of 8T", loop(used, short, block), ours(dynamic, 2 * T))


def show_rounding_traps(folder: Path) -> None:
    """Print what biases give that are rounded to bf16."""
    far = 8 * T
    for name in ("bloom", "mpt"):
        rounded: Any = load(folder / name, dtype=torch.bfloat16)
        rounded.config.max_seq_len = far + 1
        tokens, block = texts(folder / name, far)
        print_trap(f"{name} in bf16 at 8T", loop(rounded, tokens, block), ours(folder / name, far))


def show_input_traps(folder: Path) -> None:
    """Print what wrong labels and a missing first token give."""
    llama = folder / "llama"
    tokens, block = texts(llama, T)
    model = load(llama)
    rows = [model(row[None], logits_to_keep=block).logits for row in tokens]
    logits = torch.cat(rows).detach()  # (N, block, V)
    shifted_twice = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, -block:-1].flatten())
    print_trap("logits_to_keep, then the usual shift (at T)", float(shifted_twice), ours(llama, T))
    print_trap(
        "BOS left out of Gemma, which was trained with one (at T)",
        ours(folder / "gemma2", T),
        ours(folder / "gemma2", T, **{"subject.bos": True}),
    )


def measure_cost(folder: Path) -> None:
    """Print time and memory of measuring a model of 10M parameters at 8T."""
    sizes = {
        "hidden_size": 320,
        "intermediate_size": 1152,
        "num_hidden_layers": 7,
        "max_position_embeddings": 256,
    }
    # The cost does not depend on how good the model is: a second of training will do.
    path = trained("llama", folder / "10M", 1.0, **sizes)
    count = sum(parameter.numel() for parameter in load(path).parameters())
    settings = {"lengths": ["8x"], "max_targets": 32_000, "protocols": ["fixed-target"]}
    start = time.monotonic()
    posenc.evaluate("hf", **{"subject.path": path, "context_length": 256, "device": "cpu", "eval": settings})
    seconds = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{count:,} parameters at 8T = 2048: {seconds:.0f} s, peak of the process {peak:,.0f} MB")


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    compare_architectures(folder, seconds)
    print(f"\n{'trap':58}{'naive':>8}{'posenc':>8}")
    show_rope_traps(folder)
    show_rounding_traps(folder)
    show_input_traps(folder)
    measure_cost(folder)


if __name__ == "__main__":
    main()

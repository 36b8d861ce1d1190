"""Check and time the attention kernels on a CUDA machine: one command, no corpus.

    python scripts/checks/gpu.py [NAME ...] [--part numbers times] [--model small base] [--json FILE]

numbers  logits and gradients of every encoding (all without names), also with a window and with drawn
         positions, T = 64 to 2048: by the chosen kernels and by blocks of queries, each against the blocks in
         float32. A kernel may be off by 2.5 times what the blocks are in its precision, or by rounding.
times    training at T = 1024 and evaluation at T and 8T in turns with the base encoding: ms, tokens/s, their
         ratio to the base's, seconds of the first call (compilation), peak memory with both models.
Exit code 1 on a mismatch or failure, 2 without CUDA.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.machine import wait_for
from posenc.core.seeds import generator_for
from posenc.encodings import list_encodings
from posenc.encodings.attention_options.window import Window
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.positions.offset import Offset
from posenc.encodings.positions.randomized import Randomized
from posenc.encodings.registry import build_of_shape
from posenc.model import flex, kernels
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.running.bench.document import describe_machine
from posenc.training.device import autocast
from posenc.training.loop import NextTokenLoss, gradients, update
from posenc.training.optimizer import Optimization, build_optimizer

MODELS = {
    "small": ModelShape("small", d_model=512, n_layers=10, n_heads=8, mlp_ratio=4),
    "base": ModelShape("base", d_model=768, n_layers=12, n_heads=12, mlp_ratio=4),
}
CHECKED = ModelShape("checked", d_model=256, n_layers=2, n_heads=4, mlp_ratio=4)
OPTIONS: dict[str, Callable[[Shape], list[Encoding]]] = {
    "plain": lambda shape: [],
    "window": lambda shape: [Window(shape, window=shape.train_length // 3)],
    "randomized": lambda shape: [Randomized(shape, max=None, dense=False)],
    "offset": lambda shape: [Offset(shape, max=None)],
}
GROUPS = {"plain": "-", "window": "attention.window", "randomized": "positions", "offset": "positions"}
LENGTHS = (64, 192, 1000, 2048)
VOCABULARY = 260
LAST = 48  # tokens whose logits are asked for alone
WORSE = 2.5  # times as far off as the blocks in the same precision
ROUNDING = {"fp32": 2e-5, "bf16": 1e-2}  # relative to the norm of a tensor; less is no mismatch
LENGTH, TOKENS = 1024, 32768  # of training; tokens a batch, of an evaluation too
EXTENDED = (1, 8)  # windows of an evaluation in T
WARM_UP, REPEATS = 3, 10
PARTS = ("numbers", "times")
PLAN = Optimization(
    name="adamw",
    lr=1e-4,
    betas=(0.9, 0.95),
    eps=1e-8,
    weight_decay=0.1,
    grad_clip=1.0,
    warmup_fraction=0.0,
    final_lr_fraction=1.0,
)
Call = Callable[[], object]
reported: list[dict[str, Any]] = []  # every printed line


def report(part: str, bad: bool = False, **facts: Any) -> None:
    """Print one line and keep it for the JSON file."""
    reported.append({"part": part, "bad": bad, **facts})
    texts = [f"{key}={fact_text(value)}" for key, value in facts.items()]
    print("MISMATCH" if bad else "ok      ", part, *texts, flush=True)


def fact_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def flex_calls() -> Iterator[list[int]]:
    """Yield a list that gets the layer of each attention that FlexAttention computes."""
    layers: list[int] = []
    own = flex.attend_flex

    def counted(*given: Any) -> Tensor:
        layers.append(given[5])
        return own(*given)

    with patch.object(flex, "attend_flex", counted):
        yield layers


def decoder_of(
    name: str, shape: ModelShape, length: int, device: torch.device, option: str = "plain"
) -> Decoder | None:
    """Build a model whose encoding has moved off its start; None where encoding and option do not combine."""
    sizes = Shape(shape.d_model, shape.n_heads, shape.head_dim, shape.n_layers, length)
    options = OPTIONS[option](sizes)
    limit = getattr(options[0], "limit", None) if options else None
    with suppress(UserError, ValueError):
        encoding = build_of_shape(replace(sizes, position_limit=limit), {"name": name})
        if any(refused.startswith(GROUPS[option]) for refused in encoding.refuses):
            return None
        decoder = Decoder(shape, VOCABULARY, encoding, options)
        initialize(decoder, 0)
        generator = torch.Generator().manual_seed(1)
        for parameter in encoding.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
        return decoder.to(device)
    return None


def tokens_of(batch: int, length: int, device: torch.device) -> Tensor:
    """Return (B, T) int64, the same each time."""
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(2)).to(device)


def check_numbers(decoder: Decoder, tokens: Tensor, case: dict[str, object]) -> None:
    """Compare the chosen kernels and the blocks, in each precision, with the blocks in float32."""
    blocks_alone = patch.object(kernels, "choose_kernel", lambda *given: "blocks")
    with blocks_alone:
        exact = outcome(decoder, tokens, "fp32")
    for precision, rounding in ROUNDING.items():
        with blocks_alone:
            blocks = distances(outcome(decoder, tokens, precision), exact)
        try:
            with flex_calls() as layers:
                off = distances(outcome(decoder, tokens, precision), exact)
        except Exception as failure:  # one kernel that does not compile must not hide the others
            report("numbers", True, **case, precision=precision, failure=repr(failure)[:500])
            continue
        over = {part: off[part] / max(WORSE * blocks[part], rounding) for part in off}
        worst = max(over, key=lambda part: over[part] if over[part] == over[part] else float("inf"))
        bad = not over[worst] <= 1  # nan is bad as well
        facts = {"worst": worst, "off": off[worst], "blocks": blocks[worst], "flex_calls": len(layers)}
        report("numbers", bad, **case, precision=precision, **facts)


def outcome(decoder: Decoder, tokens: Tensor, precision: str) -> dict[str, Tensor]:
    """Return logits, logits of the last tokens, and the gradient of every parameter, named "d ..."."""
    length = tokens.shape[1]
    pos = decoder.train().positions(length, generator_for(0, "check"))
    decoder.zero_grad(set_to_none=True)
    gradients(NextTokenLoss(decoder), tokens, tokens, pos, precision=precision, grad_clip=1e9)
    made = {f"d {name}": p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}
    pos = decoder.eval().positions(length, generator_for(0, "check"))
    with torch.no_grad(), autocast(precision, tokens.device):
        made["logits"] = decoder(tokens, pos).float()
        made["last logits"] = decoder(tokens, pos, LAST).float()
    return made


def distances(made: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Return each tensor's distance relative to its norm; a gradient below 1/1000 of all counts as that."""
    least = 1e-3 * sum(float(t.norm()) ** 2 for name, t in exact.items() if name.startswith("d ")) ** 0.5
    return {
        name: float((made[name] - t).norm()) / max(float(t.norm()), least if name.startswith("d ") else 0.0)
        for name, t in exact.items()
    }


def training(decoder: Decoder, device: torch.device) -> Call:
    loss_of = NextTokenLoss(decoder)
    optimizer = build_optimizer(decoder, PLAN, "bf16")
    tokens = tokens_of(TOKENS // LENGTH, LENGTH, device)

    def step() -> None:
        pos = decoder.train().positions(LENGTH, generator_for(0, "times"))
        gradients(loss_of, tokens, tokens, pos, precision="bf16", grad_clip=1.0)
        update(optimizer, 1e-4)

    return step


def evaluation(decoder: Decoder, window: int, device: torch.device) -> Call:
    tokens = tokens_of(max(1, TOKENS // window), window, device)

    @torch.no_grad()
    def score() -> None:
        pos = decoder.eval().positions(window, generator_for(0, "times"))
        with autocast("bf16", device):
            decoder(tokens, pos, LENGTH // 4)

    return score


def seconds(call: Call, device: torch.device) -> float:
    wait_for(device)
    began = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - began


def compare_times(case: dict[str, object], calls: list[Call], device: torch.device) -> None:
    """Time two calls in turns: the base's, then the encoding's own."""
    try:
        seconds(calls[0], device)
        first = seconds(calls[1], device)
        torch.cuda.reset_peak_memory_stats(device)
        seconds(calls[1], device)
        peak = torch.cuda.max_memory_allocated(device)
        turns = [[seconds(call, device) for call in calls] for _ in range(WARM_UP + REPEATS)][WARM_UP:]
    except Exception as failure:  # out of memory, or a kernel that does not compile: the others go on
        torch.cuda.empty_cache()
        report("times", not isinstance(failure, torch.OutOfMemoryError), **case, failure=repr(failure)[:500])
        return
    own = statistics.median(turn[1] for turn in turns)
    ratio = statistics.median(turn[0] / turn[1] for turn in turns)
    facts = {"ms": 1e3 * own, "tokens_per_s": TOKENS / own, "of_base": ratio, "first_s": first}
    report("times", **case, **facts, peak_gib=peak / 2**30)


def time_encoding(shape: ModelShape, name: str, base: str, device: torch.device) -> None:
    """Time training and evaluation of an encoding in turns with the base."""
    # The base is built anew each time: what its optimizer holds is memory that the next encoding would miss.
    base_model = decoder_of(base, shape, LENGTH, device)
    model = decoder_of(name, shape, LENGTH, device)
    if base_model is not None and model is not None:
        pair = (base_model, model)
        case = {"model": shape.name, "encoding": name}
        calls = [training(decoder, device) for decoder in pair]
        compare_times({"what": "training", **case}, calls, device)
        for multiple in EXTENDED:
            calls = [evaluation(decoder, multiple * LENGTH, device) for decoder in pair]
            compare_times({"what": f"evaluation at {multiple}T", **case}, calls, device)
        del pair, calls
    del base_model, model
    torch.cuda.empty_cache()


def check_all_numbers(names: Sequence[str], lengths: Sequence[int], device: torch.device) -> None:
    """Check every encoding with every option that it accepts, at every length."""
    for name, option, length in itertools.product(names, OPTIONS, lengths):
        decoder = decoder_of(name, CHECKED, length, device, option)
        if decoder is not None:
            case: dict[str, object] = {"encoding": name, "option": option, "T": length}
            check_numbers(decoder, tokens_of(2, length, device), case)


def time_all(models: Sequence[str], names: Sequence[str], base: str, device: torch.device) -> None:
    """Time every encoding in every shape in turns with the base, which is timed with itself first."""
    for model in models:
        for name in dict.fromkeys([base, *names]):
            time_encoding(MODELS[model], name, base, device)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="encodings; all without names")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS), help="shapes to time")
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, help="T of the numbers")
    parser.add_argument("--base", default="rope", help="the encoding that the others are timed in turns with")
    parser.add_argument("--device", default="cuda", help="cpu tries the script itself, without times")
    parser.add_argument("--json", type=Path, help="a file for all lines and the machine")
    return parser.parse_args()


def main() -> int:
    """Check and time; return 1 if something is off, 2 without a CUDA device."""
    arguments = parsed_arguments()
    if arguments.device != "cpu" and not torch.cuda.is_available():
        print("check_gpu: PyTorch sees no CUDA device here; nothing was checked.", file=sys.stderr)
        return 2
    device = torch.device(arguments.device)
    names = arguments.names or list_encodings()
    try:
        if "numbers" in arguments.part:
            check_all_numbers(names, arguments.lengths, device)
        if "times" in arguments.part and device.type == "cuda":
            time_all(arguments.model, names, arguments.base, device)
    finally:
        if arguments.json:
            document = {"machine": asdict(describe_machine(device)), "found": reported}
            arguments.json.write_text(json.dumps(document, indent=1))
    bad = [line for line in reported if line["bad"]]
    print(f"check_gpu: {len(reported)} checks, {len(bad)} bad", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

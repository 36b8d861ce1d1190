"""What each encoding costs beside NoPE: time of a training step, peak memory of evaluation at 8T.

    python scripts/encoding_costs.py [NAME ...]        all encodings without names
Steps are timed in turns with NoPE's and compared in pairs, the median of the ratios is shown: run it on a
quiet machine. Memory is the most that a process of its own held while it evaluated one batch.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from posenc.encodings import build_encoding, list_encodings
from posenc.jobs.build import peak_memory
from posenc.model.decoder import Decoder, ModelShape
from posenc.model.init import initialize
from posenc.seeds import generator_for
from posenc.training.memory import keep_freed_memory
from posenc.training.precision import autocast, resolve_precision
from posenc.training.step import NextTokenLoss, gradients

NANO = ModelShape("nano", d_model=128, n_layers=4, n_heads=4, mlp_ratio=4)
VOCABULARY = 260
TRAIN_TOKENS, EVAL_TOKENS = 2048, 8192  # a batch
LENGTHS = (64, 512)
CPU = torch.device("cpu")
REPEATS = 9


def model(name: str, train_length: int) -> Decoder:
    encoding = build_encoding(
        name,
        d_model=NANO.d_model,
        n_heads=NANO.n_heads,
        head_dim=NANO.head_dim,
        n_layers=NANO.n_layers,
        train_length=train_length,
    )
    decoder = Decoder(NANO, VOCABULARY, encoding)
    initialize(decoder, 0)
    return decoder


def step_of(name: str, length: int) -> Callable[[], float]:
    """One forward and backward pass of 2048 tokens, in seconds."""
    decoder = model(name, length).train()
    loss_of = NextTokenLoss(decoder)
    tokens = torch.randint(VOCABULARY, (TRAIN_TOKENS // length, length))
    pos = decoder.positions(length, generator_for(0, "costs"))
    precision = resolve_precision("auto", CPU)

    def step() -> float:
        began = time.perf_counter()
        gradients(loss_of, tokens, tokens, pos, precision=precision, grad_clip=1.0)
        taken = time.perf_counter() - began
        decoder.zero_grad(set_to_none=True)
        return taken

    return step


def step_ratio(name: str, length: int) -> tuple[float, float]:
    """Median milliseconds of a step, and its median ratio to NoPE's."""
    baseline, step = step_of("nope", length), step_of(name, length)
    baseline(), step()
    pairs = [(baseline(), step()) for _ in range(REPEATS)]
    return 1e3 * statistics.median(b for _, b in pairs), statistics.median(b / a for a, b in pairs)


def evaluation_peak(name: str, train_length: int) -> int:
    """Bytes that a process of its own holds at most when it evaluates one batch at 8T."""
    command = [sys.executable, __file__, "--peak", name, str(train_length)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(name: str, train_length: int) -> None:
    keep_freed_memory()
    length, decoder = 8 * train_length, model(name, train_length).eval()
    tokens = torch.randint(VOCABULARY, (max(1, EVAL_TOKENS // length), length))
    with torch.no_grad(), autocast(resolve_precision("auto", CPU), CPU):
        decoder(tokens, decoder.positions(length, generator_for(0, "costs")), train_length // 4)
    print(peak_memory(CPU))


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    keep_freed_memory()
    table = Table("encoding", "learned")
    for length in LENGTHS:
        table.add_column(f"step T={length}", justify="right")
    table.add_column("memory 8T=512", justify="right")
    table.add_column("8T=4096", justify="right")
    bases = [evaluation_peak("nope", length) for length in (64, 512)]
    for name in sys.argv[1:] or list_encodings():
        count = sum(p.numel() for p in model(name, 64).encoding.parameters())
        steps = [f"{step_ratio(name, length)[1]:.2f}x" for length in LENGTHS]
        peaks = [evaluation_peak(name, length) for length in (64, 512)]
        memory = [f"{peak / base:.2f}x" for peak, base in zip(peaks, bases, strict=True)]
        table.add_row(name, f"{count:,}", *steps, *memory)
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print_peak(sys.argv[2], int(sys.argv[3]))
    else:
        main()

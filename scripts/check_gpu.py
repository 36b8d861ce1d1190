"""Checks and times the attention kernels on a CUDA machine: one command, no corpus.

    python scripts/check_gpu.py [NAME ...] [--part numbers times] [--model small base] [--json FILE]

numbers  logits and gradients of every encoding (all without names), also with a window and with drawn
         positions, T = 64 to 2048: by the chosen kernels and by blocks of queries, each against the blocks in
         float32. A kernel may be off by 2.5 times what the blocks are in its precision, or by rounding.
times    training at T = 1024 and evaluation at T and 8T in turns with the base encoding: ms, tokens/s, their
         ratio to the base's, seconds of the first call (compilation), peak memory with both models, MFU.
A line is printed as it is found. Exit code 1 on a mismatch or failure, 2 without CUDA.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from gpu_checks import common, numbers, times

from posenc.cli.bench_cell import machine
from posenc.encodings import list_encodings
from posenc.model.decoder import ModelShape

PARTS = ("numbers", "times")
MODELS = {
    "small": ModelShape("small", d_model=512, n_layers=10, n_heads=8, mlp_ratio=4),
    "base": ModelShape("base", d_model=768, n_layers=12, n_heads=12, mlp_ratio=4),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="encodings; all without names")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS), help="shapes to time")
    parser.add_argument("--lengths", nargs="+", type=int, default=numbers.LENGTHS, help="T of the numbers")
    parser.add_argument("--base", default="rope", help="the encoding that the others are timed in turns with")
    parser.add_argument("--device", default="cuda", help="cpu tries the script itself, numbers only")
    parser.add_argument("--json", type=Path, help="a file for all lines and the machine")
    asked = parser.parse_args()
    if asked.device != "cpu" and not torch.cuda.is_available():
        print("check_gpu: PyTorch sees no CUDA device here; nothing was checked.", file=sys.stderr)
        return 2
    device = torch.device(asked.device)
    names = asked.names or list_encodings()
    shapes = [MODELS[name] for name in asked.model]
    try:
        if "numbers" in asked.part:
            numbers.check(names, device, asked.lengths)
        if "times" in asked.part and device.type == "cuda":
            times.time_all(names, asked.base, shapes, device)
    finally:
        if asked.json:
            asked.json.write_text(json.dumps({"machine": machine(device), "found": common.found}, indent=1))
    bad = [one for one in common.found if one["bad"]]
    print(f"check_gpu: {len(common.found)} checks, {len(bad)} bad", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

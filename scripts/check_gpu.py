"""Make a whole visit to a CUDA GPU in one call: check numbers, time everything, write one JSON.

    python scripts/check_gpu.py --all                       everything, in at most nine minutes
    python scripts/check_gpu.py --part numbers alibi t5     some parts, some encodings
    python scripts/check_gpu.py --all --device cpu          tries every part in a tiny size

numbers     logits and gradients of every encoding by the kernels that posenc chooses, against blocks in
            float32: plain, with a window, with drawn positions, in fp32 and bf16; of some also compiled
times       a training step at T = 1024, 32M parameters, bf16: compiled and not, in turns with rope
peers       models of other packages in turns with rope, compiled beside compiled
evaluation  tokens a second at T and 8T
nanos       one small model alone and eight at once, with and without MPS, with and without CUDA graphs
long_keys   PyTorch's fused attention beyond 65,536 keys against blocks
resume      a run stopped by SIGTERM and continued, against an undisturbed one
base        `times` at 125M parameters

The JSON is written after every item. The same command continues it: what is there is not measured again.
Where time runs out the rest is listed. docs/performance.md shows its tables (scripts/docs/gpu_tables.py).
Exit code 1 if a number is off or an item failed, 2 without CUDA.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from gpu.document import Document
from gpu.items import PARTS, Visit
from gpu.report import failures, mismatches, report
from gpu.sizes import sizes_for
from gpu.times import peers_installed
from gpu.visit import Clock, run

from posenc.core.paths import cache_dir
from posenc.encodings import list_encodings
from posenc.running.bench.document import describe_machine

MINUTES = 8.7  # a tenth is left for the end of a call of nine minutes
THREADS = {
    "OMP_NUM_THREADS": "1",
    # of each process that compiles: eight of them share the cores
    "TORCHINDUCTOR_COMPILE_THREADS": "2",
}


def parsed_arguments() -> argparse.Namespace:
    """Return what was typed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="encodings; without names the usual ones")
    parts = parser.add_mutually_exclusive_group(required=True)
    parts.add_argument("--all", action="store_true", help="every part")
    parts.add_argument("--part", action="append", choices=PARTS, help="a part; may be given several times")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a tiny size")
    parser.add_argument("--compiled", action="store_true", help="with --device cpu: compile too (minutes)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="begin nothing that would end later")
    parser.add_argument("--json", type=Path, default=Path("check-gpu.json"), help="the file of the results")
    parser.add_argument("--again", action="store_true", help="measure again what failed in the JSON")
    return parser.parse_args()


def visit_of(arguments: argparse.Namespace, log: Path) -> Visit:
    """Return what was asked for."""
    sizes = sizes_for(arguments.device, compiled=arguments.compiled)
    timed = sizes.timed
    if arguments.names:
        timed = tuple(arguments.names)
    encodings = arguments.names or list_encodings()
    if arguments.device == "cpu" and not arguments.names:
        encodings = list(sizes.timed)
    return Visit(
        sizes=sizes,
        device=arguments.device,
        encodings=encodings,
        timed=timed,
        peers=peers_installed(),
        parts=PARTS if arguments.all else arguments.part,
        log=log,
    )


def main() -> int:
    """Make the visit; return 1 if something is off, 2 without a CUDA device."""
    arguments = parsed_arguments()
    clock = Clock.of(arguments.minutes)
    if arguments.device != "cpu" and not torch.cuda.is_available():
        print("check_gpu: PyTorch sees no CUDA device here; nothing was checked.", file=sys.stderr)
        return 2
    os.environ.update(THREADS)
    # one folder for all workers, where each finds what another one has compiled
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    log = arguments.json.with_suffix(".log").absolute()
    document = Document(arguments.json, again=arguments.again)
    document.set_machine(asdict(describe_machine(torch.device(arguments.device))))
    run(visit_of(arguments, log), document, clock)
    print(f"\n{report(document.content)}\n")
    off = mismatches(document.items)
    failed = failures(document.items)
    print(f"check_gpu: {len(document.items)} items in {arguments.json}, {len(off)} off, {len(failed)} failed")
    return 1 if off or failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A training step in posenc and in its peers: same shape, tokens, precision and step count, in turns.

    python scripts/bench_peers.py                                    nano, T = 64, 256 and 512, fp32 and bf16
    python scripts/bench_peers.py --model tiny --lengths 64,256 --rounds 20
    python scripts/bench_peers.py --only 'posenc*' --only '*learned einsum*' --compile
Every contestant makes `--steps` steps in turn, `--rounds` times, in another order each time; medians of the
rounds, and medians of the ratios within a round. Tokens are bytes of SymPy's source, the same batches for
all, in memory before anything is timed. All have fused AdamW, clipping, tied embeddings, the same threads,
and the allocator setting that posenc makes for the process. The last loss is the mean of the last ten steps.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import io
import json
import statistics
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import yaml
from peers import COMPILED, OURS, VOCABULARY, Contestant, contestant, makers
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from posenc.cli.bench import machine
from posenc.config.checks import check_model
from posenc.core.machine import wait_for
from posenc.core.paths import conf_dir
from posenc.model.decoder import ModelShape
from posenc.training.device import keep_freed_memory, resolve_device

ENCODINGS = ["nope", "learned", "rope", "alibi", "t5"]
PEERS = ("x-transformers", "transformers")
WIDTH = 110
HEADS = ("parameters", "ms a step", "tokens/s", "x best peer", "x same", "first loss", "last loss")
LAST = 10  # steps whose mean loss is shown


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    device = resolve_device(asked.device)
    shape = _shape(asked.model)
    lengths, precisions = [int(n) for n in asked.lengths.split(",")], asked.precision.split(",")
    torch._dynamo.config.recompile_limit = 512  # one function serves the models of a package
    document = {
        "machine": machine(device),
        "peers": {name: version(name) for name in PEERS if _has(name)},
        **{key: getattr(asked, key) for key in ("model", "batch_tokens", "steps", "rounds", "compile")},
        "tables": [_table(asked, shape, length, precisions, device) for length in lengths],
    }
    print(json.dumps(document, indent=2) if asked.format == "json" else text(document, asked.format))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--model", default="nano", help="a YAML of conf/model, or d_model,layers,heads,mlp_ratio"
    )
    parser.add_argument("--lengths", default="64,256,512")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--precision", default="fp32,bf16", help="bf16 is autocast")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=2, help="in a round, of each")
    parser.add_argument("--encodings", default=",".join(ENCODINGS), help="of posenc")
    parser.add_argument("--only", action="append", help="contestants by name, a glob; may be given again")
    parser.add_argument("--compile", action="store_true", help="torch.compile, each as its users would")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    return parser


def _shape(model: str) -> ModelShape:
    if "," in model:
        return ModelShape("given", *(int(n) for n in model.split(",")))
    return check_model(yaml.safe_load((conf_dir() / "model" / f"{model}.yaml").read_text(encoding="utf-8")))


def _has(package: str) -> bool:
    return importlib.util.find_spec(package.replace("-", "_")) is not None


def _table(
    asked: Any, shape: ModelShape, length: int, precisions: list[str], device: torch.device
) -> dict[str, Any]:
    """Every contestant at one length: seconds of its steps round by round, and its loss at the end."""
    contestants, left_out = _contestants(asked, shape, length, precisions, device)
    batches = list(_batches(length, asked.batch_tokens // length, 2 + asked.rounds * asked.steps, device))
    seconds: dict[str, list[float]] = {one.name: [] for one in contestants}
    losses: dict[str, list[Tensor]] = {one.name: [] for one in contestants}
    for one in list(contestants):
        try:
            losses[one.name] += [one.step(*batch) for batch in batches[:2]]  # sets up, compiles
        except Exception as error:
            left_out[one.name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            contestants.remove(one)
    for i in range(asked.rounds):
        batch = batches[2 + i * asked.steps :][: asked.steps]
        turn = i % len(contestants)
        for one in contestants[turn:] + contestants[:turn]:
            wait_for(device)
            began = perf_counter()
            found = [one.step(*some) for some in batch]
            wait_for(device)
            seconds[one.name].append((perf_counter() - began) / len(batch))
            losses[one.name] += found
    medians = {one.name: statistics.median(seconds[one.name]) for one in contestants}
    COMPILED.close()  # the next length has code of its own
    tokens = asked.batch_tokens // length * length
    peers = [one for one in contestants if one.package != OURS]

    def best_of(position: str | None) -> str | None:
        alike = [one.name for one in peers if position in (None, one.position)]
        return min(alike, key=medians.__getitem__, default=None)

    best = best_of(None)
    rows = [
        {
            "name": one.name,
            "package": one.package,
            "precision": one.precision,
            "parameters": one.parameters,
            "seconds": medians[one.name],
            "tokens_per_second": tokens / medians[one.name],
            "position": one.position,
            "against_best_peer": best and _ratio(seconds[best], seconds[one.name]),
            "against_same": (alike := best_of(one.position)) and _ratio(seconds[alike], seconds[one.name]),
            "first_loss": losses[one.name][0].item(),
            "last_loss": statistics.fmean(loss.item() for loss in losses[one.name][-LAST:]),
        }
        for one in contestants
    ]
    made = 2 + asked.rounds * asked.steps
    return {"length": length, "best_peer": best, "steps": made, "rows": rows, "left_out": left_out}


def _contestants(
    asked: Any, shape: ModelShape, length: int, precisions: list[str], device: torch.device
) -> tuple[list[Contestant], dict[str, str]]:
    found, left_out = [], {}
    for maker in makers(asked.encodings.split(",")):
        for precision in precisions:
            name = f"{maker.name} {precision}"
            if asked.only and not any(fnmatch.fnmatch(name, pattern) for pattern in asked.only):
                continue
            try:
                found.append(contestant(maker, shape, length, precision, device, asked.compile))
            except Exception as error:
                left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found, left_out


def _ratio(other: list[float], own: list[float]) -> float:
    """How many times as fast as the other one, the median over the rounds."""
    return statistics.median(a / b for a, b in zip(other, own, strict=True))


def _batches(length: int, windows: int, count: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets (B, T): windows at random places of SymPy's core, as bytes."""
    found = importlib.util.find_spec("sympy")
    assert found is not None and found.origin is not None
    files = sorted((Path(found.origin).parent / "core").glob("*.py"))
    text = np.frombuffer(b"".join(path.read_bytes() for path in files), dtype=np.uint8).astype(np.int64)
    assert text.max() < VOCABULARY
    random = np.random.default_rng(0)
    for _ in range(count):
        starts = random.integers(len(text) - length - 1, size=windows)
        both = torch.from_numpy(np.stack([text[i : i + length + 1] for i in starts])).to(device)
        yield both[:, :-1].contiguous(), both[:, 1:].contiguous()


def text(document: dict[str, Any], format: str) -> str:
    """A table for each length, fastest first, with what was left out and the ratio that matters."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, markup=False, emoji=False)
    machine = document["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in document["peers"].items())
    console.print(
        f"{machine['device_name'] or machine['cpu']}, {machine['threads']} of {machine['cores']} cores, "
        f"torch {machine['versions']['torch']}; {packages}"
    )
    compiled = "compiled" if document["compile"] else "not compiled"
    for one in document["tables"]:
        windows = document["batch_tokens"] // one["length"]
        title = (
            f"{document['model']}, T = {one['length']}, {windows} x {one['length']} tokens a step, {compiled}"
        )
        console.print(
            f"\n{title}; {document['rounds']} rounds; losses at the first and last of {one['steps']} steps"
        )
        table = Table(
            "contestant",
            box=box.MARKDOWN if format == "markdown" else box.SIMPLE_HEAD,
            pad_edge=format == "markdown",
        )
        for head in HEADS:
            table.add_column(head, justify="right", no_wrap=True)
        for row in sorted(one["rows"], key=lambda row: row["seconds"]):
            table.add_row(
                row["name"],
                f"{row['parameters']:,}",
                f"{1e3 * row['seconds']:.1f}",
                f"{row['tokens_per_second']:,.0f}",
                _times(row["against_best_peer"]),
                _times(row["against_same"]),
                f"{row['first_loss']:.2f}",
                f"{row['last_loss']:.2f}",
            )
        console.print(table)
        for name, reason in one["left_out"].items():
            console.print(f"left out: {name}: {reason}")
    console.print("\nwall-clock time, medians; x best peer: times as fast as the best setting of any peer,")
    console.print("x same: as the best peer with the same encoding; medians of the rounds' ratios")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


if __name__ == "__main__":
    main()

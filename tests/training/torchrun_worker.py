"""What test_distributed.py has every process do under torchrun: `torchrun_worker.py WHAT FOLDER CORPUS`.

Each leaves what it saw in FOLDER/<rank>.json and FOLDER/<rank>.npz.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
from tiny_model import T, build, run, tokens_of

from posenc.core.errors import RunError
from posenc.data import TokenStore
from posenc.evaluation import forward_cache as evaluation
from posenc.model.decoder import Decoder
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.training import distributed
from posenc.training.distributed import alone, current, run_distributed
from posenc.training.loop import NextTokenLoss, Progress

STEPS, WINDOWS, CPU = 30, 6, torch.device("cpu")  # 6 windows are 1, 2, 1, 2 for four processes


def trained(store: TokenStore, folder: Path, seed: int = 0) -> tuple[Decoder, dict[str, Any], dict[str, Any]]:
    """A short training; what it logged, and what every step was given in this process."""
    model, logged = build("rope", store, seed), list[Progress]()
    seen: dict[str, list[np.ndarray]] = {"inputs": [], "targets": [], "pos": []}
    forward = NextTokenLoss.forward

    def watched(self: NextTokenLoss, *given: torch.Tensor) -> torch.Tensor:
        for kept, one in zip(seen.values(), given, strict=True):
            kept.append(one.numpy().copy())
        return forward(self, *given)

    NextTokenLoss.forward = watched  # type: ignore[method-assign]
    try:
        shares = {"steps": STEPS, "windows": WINDOWS, "log_every": 1}
        run(model, store, folder / "checkpoints", on_log=logged.append, **shares)  # type: ignore[arg-type]
    finally:
        NextTokenLoss.forward = forward  # type: ignore[method-assign]
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    said = {
        "losses": [progress.loss for progress in logged],
        "norms": [progress.grad_norm for progress in logged],
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    return model, said, {name: np.stack(values) for name, values in seen.items()}


def outcome(do: Callable[[], Any]) -> Any:
    """What it returns, or the name and text of what it raises."""
    try:
        return do()
    except (Exception, InterruptedRunError) as error:
        return [type(error).__name__, str(error)]


def evaluated(model: Decoder, store: TokenStore) -> dict[str, Any]:
    """Losses shared out, and what one process's trouble does to all."""
    split = store.splits["test"]
    subject = evaluation.EvalContext(model, T, 0, "fp32", CPU, store, "test", batch_tokens=96)
    real, last = evaluation._forward, current().rank == current().size - 1
    passes: list[int] = []
    most = 99

    def read(i: int) -> np.ndarray:
        return store.tokens[split.starts[i % 5] + i : split.starts[i % 5] + i + 33]

    def losses(stop: StopFlag | None = None) -> Any:
        of = subject if stop is None else dataclasses.replace(subject, check_stop=stop.check)
        return evaluation.window_losses(of, read, 37, 32, 8).tolist()

    def forward(*given: Any) -> Any:
        passes.append(len(given[1]))
        if last and len(given[1]) > most:
            raise torch.OutOfMemoryError(f"out of memory in process {current().rank}")
        return real(*given)

    found = {}
    with alone():
        found["alone"] = losses()
    evaluation._forward = forward
    found["shared"], found["windows"] = losses(), sum(passes)
    most = 2
    found["halved"] = losses()
    most = 0
    found["oom"] = outcome(losses)
    evaluation._forward = real
    stop = StopFlag()
    current().on_stop = stop.asked_elsewhere
    stop.received = signal.SIGINT if last else None
    found["stop"], found["reason"] = outcome(lambda: losses(stop)), stop.name
    return found


def posenc(*arguments: str) -> dict[str, Any]:
    """A command line in all processes: exit code, stdout and stderr of this one."""
    from conftest import as_a_new_process

    from posenc import cli

    code = 0
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        as_a_new_process(list(arguments)),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def failing() -> int:
    """The last process fails, the others are waiting for it."""
    group = current()
    group.connect(CPU, "test", None)
    if group.rank == group.size - 1:
        raise RunError("only here")
    with group.watched():
        group.agree(torch.ones(()), torch.ones(()), StopFlag())
    return 0


def commands(folder: Path, corpus: Path) -> dict[str, Any]:
    """Several command lines, and a failure, one after the other."""
    words = ["train", *tiny.TINY, f"data.paths={corpus}", "encoding=rope"]
    said = {
        "train": posenc(*words, "positions=randomized"),
        "eval": posenc("eval", f"run={next((folder / 'runs/default').iterdir())}", "eval.lengths=[1x,8x]"),
        "sweep": posenc(*words, "-m", "seed=0,1"),
        "many": posenc(*words, "train.batch_tokens=16"),
        "diverged": posenc(*words, "train.lr=1e12", "runs_dir=elsewhere"),
    }
    err, distributed.FIRST_ENDS = io.StringIO(), timedelta(seconds=1)
    with contextlib.redirect_stderr(err):
        failed = outcome(lambda: run_distributed(failing))
    return {**said, "failing": [failed, err.getvalue()]}


def shared(folder: Path, corpus: Path, report: dict[str, Any]) -> int:
    current().connect(CPU, "test", WINDOWS)
    store = tokens_of(corpus)
    # other ranks begin with other weights: the first one's count
    model, said, seen = trained(store, folder, seed=current().rank)
    np.savez(folder / f"{current().rank}.npz", **seen)
    report.update(said, **evaluated(model, store))
    return 0


def main(what: str, folder: Path, corpus: Path) -> None:
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    os.chdir(folder)
    if run_distributed(lambda: shared(folder, corpus, report)):
        sys.exit(1)
    if what == "all":
        report.update(commands(folder, corpus))
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

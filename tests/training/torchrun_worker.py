"""What test_distributed.py has every process do under torchrun: `torchrun_worker.py WHAT FOLDER CORPUS`.

Each leaves what it saw in FOLDER/<rank>.json and FOLDER/<rank>.npz.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
from tiny_model import build, run, tokens_of

from posenc.core.errors import RunError
from posenc.running.signals import StopFlag
from posenc.training import distributed
from posenc.training.distributed import current, run_distributed
from posenc.training.loop import NextTokenLoss, Progress

STEPS, WINDOWS, CPU = 30, 6, torch.device("cpu")  # 6 windows are 1, 2, 1, 2 for four processes


def trained(store, folder, seed=0):
    """A short training; what it logged, and what every step was given in this process."""
    model, logged, seen = build("rope", store, seed), list[Progress](), []
    forward = NextTokenLoss.forward

    def watched(self, *given):
        seen.append([one.numpy().copy() for one in given])
        return forward(self, *given)

    with mock.patch.object(NextTokenLoss, "forward", watched):
        shares = {"steps": STEPS, "batch_windows": WINDOWS, "log_every": 1}
        run(model, store, folder / "checkpoints", on_log=logged.append, **shares)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    said = {
        "losses": [progress.loss for progress in logged],
        "norms": [progress.grad_norm for progress in logged],
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    stacked = map(np.stack, zip(*seen, strict=True))
    return said, dict(zip(("inputs", "targets", "pos"), stacked, strict=True))


def posenc(*arguments):
    """A command line in all processes: exit code, stdout and stderr of this one."""
    from conftest import exit_code_of

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code_of(*arguments)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def failing():
    group = current()
    group.connect(CPU, "test", None)
    if group.rank == group.size - 1:
        raise RunError("only here")
    with group.watched():
        group.agree(torch.ones(()), torch.ones(()), StopFlag())
    return 0


def commands(folder, corpus):
    words = ["train", *tiny.TINY, f"data.paths={corpus}", "encoding=rope"]
    said = {
        "train": posenc(*words, "positions=randomized"),
        "eval": posenc("eval", f"run={next((folder / 'runs/default').iterdir())}", "eval.lengths=[1x,8x]"),
        "sweep": posenc(*words, "-m", "seed=0,1"),
        "many": posenc(*words, "train.batch_tokens=16"),
    }
    err, distributed.FIRST_ENDS = io.StringIO(), timedelta(seconds=1)
    with contextlib.redirect_stderr(err):
        try:
            failed = run_distributed(failing)
        except RunError as error:
            failed = error.text()
    return {**said, "failing": [failed, err.getvalue()]}


def shared(folder, corpus, report):
    current().connect(CPU, "test", WINDOWS)
    store = tokens_of(corpus)
    # other ranks begin with other weights: the first one's count
    said, seen = trained(store, folder, seed=current().rank)
    np.savez(folder / f"{current().rank}.npz", **seen)
    report.update(said)
    return 0


def main(what, folder, corpus):
    torch.set_num_threads(1)
    report = {}
    os.chdir(folder)
    if run_distributed(lambda: shared(folder, corpus, report)):
        sys.exit(1)
    if what == "all":
        report.update(commands(folder, corpus))
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

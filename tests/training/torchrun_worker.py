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
from posenc.training.loop import NextTokenLoss

STEPS = 30
WINDOWS = 6  # 1, 2, 1, 2 for four processes
CPU = torch.device("cpu")


def trained(store, folder, seed=0):
    """Train shortly; return what was logged, and the arrays that this process was given in all steps."""
    model = build("rope", store, seed)
    logged = []
    arguments = []
    forward = NextTokenLoss.forward

    def watched(self, inputs, targets, pos, weights):
        arguments.append([tensor.numpy().copy() for tensor in (inputs, targets, pos)])
        return forward(self, inputs, targets, pos, weights)

    with mock.patch.object(NextTokenLoss, "forward", watched):
        run(
            model,
            store,
            folder / "checkpoints",
            logged=logged,
            steps=STEPS,
            batch_windows=WINDOWS,
            log_every=1,
        )
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    report = {
        "losses": [line.loss for line in logged],
        "norms": [line.grad_norm for line in logged],
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    inputs, targets, pos = map(np.stack, zip(*arguments, strict=True))
    return report, {"inputs": inputs, "targets": targets, "pos": pos}


def posenc(*arguments):
    """A command line in all processes: exit code, stdout and stderr of this one."""
    from in_process import exit_code_of

    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code_of(*arguments)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def fail_in_the_last_process():
    group = current()
    group.connect(CPU, "test", None)
    if group.rank == group.size - 1:
        raise RunError("only here")
    with group.watched():
        group.agree(torch.ones(()), torch.ones(()), StopFlag())
    return 0


def report_of_a_failure():
    """The exit code or the error of this process when another one fails, and its stderr."""
    err = io.StringIO()
    distributed.END_TIMEOUT = timedelta(seconds=1)
    with contextlib.redirect_stderr(err):
        try:
            result = run_distributed(fail_in_the_last_process)
        except RunError as error:
            result = error.text()
    return [result, err.getvalue()]


def commands(folder, corpus):
    train = ["train", *tiny.TINY, f"data.paths={corpus}", "encoding=rope"]
    report = {"train": posenc(*train, "positions=randomized")}
    run_directory = next((folder / "runs/default").iterdir())
    report["eval"] = posenc("eval", f"run={run_directory}", "eval.lengths=[1x,8x]")
    report["sweep"] = posenc(*train, "-m", "seed=0,1")
    report["many"] = posenc(*train, "train.batch_tokens=16")
    report["failing"] = report_of_a_failure()
    return report


def train_together(folder, corpus, report):
    current().connect(CPU, "test", WINDOWS)
    store = tokens_of(corpus)
    # other ranks begin with other weights: the first one's count
    training, arrays = trained(store, folder, seed=current().rank)
    np.savez(folder / f"{current().rank}.npz", **arrays)
    report.update(training)
    return 0


def main(what, folder, corpus):
    torch.set_num_threads(1)
    report = {}
    os.chdir(folder)
    if run_distributed(lambda: train_together(folder, corpus, report)):
        sys.exit(1)
    if what == "all":
        report.update(commands(folder, corpus))
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

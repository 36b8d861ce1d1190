"""Sweeps: every job a process of its own, the comparison at the end, failures listed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import tiny

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.running.sweep_display import VARIABLE
from posenc.running.worker_pool import OUT_OF_MEMORY

Posenc = Callable[..., tiny.Result]

PLUGIN = """
import os
from posenc.encodings.base import Encoding

class Raises(Encoding):
    name, paper, formula, acts_on, past_training = "raises", "none", "none", "nothing", "none"

    def embed(self, x, pos, layer):
        raise KeyError("boom")

class Dies(Encoding):
    name, paper, formula, acts_on, past_training = "dies", "none", "none", "nothing", "none"

    def embed(self, x, pos, layer):
        os.kill(os.getpid(), 9)

class Explodes(Encoding):
    name, paper, formula, acts_on, past_training = "explodes", "none", "none", "nothing", "none"

    def embed(self, x, pos, layer):
        return x * float("inf")
"""


def test_a_sweep_ends_with_the_comparison_and_skips_what_is_there(
    run_copy: Path, place: Path, corpus: Path
) -> None:
    """Rope with seed 0 is trained already. On a pipe, so that each job has a line and no table follows it."""
    weights = {p: p.stat().st_mtime_ns for p in run_copy.rglob("model.safetensors")}
    sweep = ["train", "-m", *tiny.TINY, f"data.paths={corpus}", "encoding=rope,alibi", "seed=0,1,0"]
    result = tiny.finished(tiny.start(*sweep, cwd=place), 600)
    assert result.code == 0, result.err
    assert result.err.count("already finished") == 1 and result.err.count("training 40/40") == 3
    assert "[4/4]" in result.err  # seed=0 twice is one job
    assert {p: p.stat().st_mtime_ns for p in weights} == weights
    assert len(list((place / "runs" / "default").iterdir())) == 4
    lines = result.err.splitlines()
    ends = r"\[\d/4\] (rope|alibi).*: 1x \d\.\d{3}, 2x \d\.\d{3}, 4x \d\.\d{3} nats per token; \d:\d\d$"
    assert len([line for line in lines if re.match(ends, line)]) == 3, result.err
    assert any("job 2 of 4, at least " in line and "in all" in line for line in lines)
    assert any("job 4 of 4, 0:" in line for line in lines)
    assert "nats per token  " not in result.err and "\x1b" not in result.err and VARIABLE not in result.err
    out = result.out
    assert out.count("fixed-target: nats per token") == out.count("nonoverlapping: nats per token") == 1
    assert "±" in out and "2 seeds" in out
    rows = [line.split()[0] for line in out.splitlines() if line.split()[:1] in (["rope"], ["alibi"])]
    assert sorted(rows) == ["alibi"] * 5 + ["rope"] * 5  # loss, context; by windows; by position, slope
    left = sorted(p.name for p in place.iterdir())
    assert left == ["runs"]  # Hydra left nothing beside it


def test_a_failing_job_takes_nothing_with_it(place: Path, corpus: Path) -> None:
    (place / "odd.py").write_text(PLUGIN)
    (place / "conf" / "encoding").mkdir(parents=True)
    for name in ("raises", "dies", "explodes"):
        (place / "conf" / "encoding" / f"{name}.yaml").write_text(f"name: {name}\n")
    sweep = [*tiny.TINY, f"data.paths={corpus}", "plugins=[odd]", "encoding=raises,dies,explodes,nope"]
    words = ("train", "--config-dir", "conf", *sweep, "-m")
    result = tiny.finished(tiny.start(*words, cwd=place, PYTHONPATH=str(place)), 600)
    assert result.code == 1
    assert "Traceback" not in result.err
    lines = result.err.splitlines()
    logs = {k: line.removeprefix("  log: ") for k, line in enumerate(lines) if line.startswith("  log: ")}
    listed = [lines[k - 1] for k in logs]
    assert listed == [
        "[1/4] raises: failed, KeyError: 'boom'",
        f"[2/4] dies: killed by SIGKILL, {OUT_OF_MEMORY}",
        "[3/4] explodes: diverged, non-finite loss at step 1",
    ]
    told = [(place / log).read_text() for log in logs.values()]
    assert "KeyError: 'boom'" in told[0] and "killed by SIGKILL" in told[1] and "non-finite loss" in told[2]
    assert "4 jobs: 1 failed, 1 killed by SIGKILL, 1 diverged, 1 finished" in lines
    assert "--retry" in lines[-1]
    rows = [line for line in result.out.splitlines() if line.startswith("nope ")]
    assert len(rows) == 5 and rows[0].count("3.") == 3  # loss, context; by windows; by position, slope
    states = {
        p.parent.name.split("-")[0]: json.loads(p.read_text())["status"] for p in place.rglob("status.json")
    }
    assert states["nope"] == "finished" and states["raises"] == "failed" and states["explodes"] == "diverged"


def test_an_eval_sweep_with_a_failing_job_ends_with_1(run_copy: Path, place: Path) -> None:
    """The run itself stays finished, so its status cannot tell that measuring it failed."""
    (record,) = (run_copy / "records").glob("nonoverlapping-W16-*")
    record.write_text("{}")
    words = ("eval", "-m", f"run={run_copy}", "eval.lengths=[1x,2x]", "eval.protocols=[fixed-target]")
    result = tiny.finished(tiny.start(*words, cwd=place), 600)
    assert result.code == 1 and "damaged record" in result.err
    assert f"  log: {run_copy}/log.txt" in result.err
    assert "damaged record" in (run_copy / "log.txt").read_text()
    assert json.loads((run_copy / "status.json").read_text())["status"] == "finished"


def test_a_sweep_is_a_grid(posenc: Posenc, place: Path) -> None:
    (place / "conf" / "hydra" / "sweeper").mkdir(parents=True)
    (place / "conf" / "hydra" / "sweeper" / "finds.yaml").write_text("_target_: nowhere.Finds\n")
    refused = posenc("train", "--config-dir", "conf", "-m", "hydra/sweeper=finds", "seed=0,1")
    assert refused.code == 2 and "hydra/sweeper=finds: sweeps are grids" in refused.err, refused.err


def test_flags_may_stand_anywhere(place: Path) -> None:
    for arguments in (["-m", "seed=0,1"], ["seed=0,1", "-m"], ["device=cpu", "--multirun", "seed=0,1"]):
        composed = compose_jobs("train", parse(arguments))
        assert [job.settings["seed"] for job in composed.jobs] == [0, 1] and composed.sweep


def test_a_preset_may_ask_for_a_sweep_and_its_values_be_replaced(place: Path) -> None:
    composed = compose_jobs("train", parse(["experiment=headline"]))
    names = [job.settings["encoding"]["name"] for job in composed.jobs]
    assert names == ["nope", "learned", "sinusoidal", "rope", "alibi", "t5"] and composed.sweep
    fewer = compose_jobs("train", parse(["-m", "experiment=headline", "encoding=rope,alibi"]))
    assert [job.settings["encoding"]["name"] for job in fewer.jobs] == ["rope", "alibi"]
    assert len(compose_jobs("train", parse([])).jobs) == 1


def test_one_run_under_two_names_is_done_once(train: Posenc, place: Path) -> None:
    done = train("-m", "name=z,b", "encoding=rope")
    assert done.code == 0 and "the same run as" in done.err, done.err
    (run,) = (place / "runs" / "default").glob("*-*")
    assert run.name.startswith("z-")
    (run.parent / f"a-{run.name[2:]}").mkdir()  # as an older posenc left it: empty, and first by name
    again = train("name=b", "encoding=rope")
    assert again.code == 0 and "rope" in again.out
    assert {path.name[0] for path in run.parent.glob("*-*")} == {"z", "a"}

"""Stopped and continued = not stopped, bit for bit, for every encoding that has a YAML."""

import json
from pathlib import Path

import pytest
from tiny_model import STEPS, build, on_disk, run

from posenc.core.paths import conf_dir
from posenc.data import TokenStore
from posenc.running.run_directory import append_metrics, drop_metrics_after

QUICK = {"rope", "learned", "t5", "fox", "dape", "sum"}  # a family each
ENCODINGS = [
    pytest.param(path.stem, marks=[] if path.stem in QUICK else [pytest.mark.slow])
    for path in sorted((conf_dir() / "encoding").glob("*.yaml"))
]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_stopped_at_the_first_middle_and_last_step_is_not_stopped(
    store: TokenStore, tmp_path: Path, encoding: str
) -> None:
    run(build(encoding, store), store, tmp_path / "whole")
    whole = on_disk(tmp_path / "whole")
    for stop in (1, STEPS // 2, STEPS - 1):
        folder = tmp_path / f"stop-{stop}"
        stopped = run(build(encoding, store), store, folder, stop_after=stop)
        assert (stopped.status, stopped.step) == ("interrupted", stop)
        # another seed's model: everything has to come from the checkpoint
        ended = run(build(encoding, store, seed=9), store, folder)
        assert (ended.status, ended.step) == ("finished", STEPS)
        assert on_disk(folder) == whole, stop


def test_a_finished_run_is_not_trained_further(store: TokenStore, tmp_path: Path) -> None:
    first = run(build("rope", store), store, tmp_path)
    before = (tmp_path / f"step-{STEPS:08d}" / "model.safetensors").stat()
    again = run(build("rope", store), store, tmp_path)
    after = (tmp_path / f"step-{STEPS:08d}" / "model.safetensors").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert (again.status, again.final_loss, again.tokens) == ("finished", first.final_loss, first.tokens)


def test_each_logged_step_stands_once_after_a_kill(store: TokenStore, tmp_path: Path) -> None:
    """Killed after step 10 was logged, with a checkpoint of step 6 only and half a line at the end."""
    folder = tmp_path / "checkpoints"

    def go(stop: int | None) -> None:
        run(
            build("rope", store),
            store,
            folder,
            stop_after=stop,
            on_log=lambda progress: append_metrics(tmp_path, progress.metrics()),
            on_resume=lambda step: drop_metrics_after(tmp_path, step),
        )

    go(6)
    append_metrics(tmp_path, {"step": 10, "loss": 99.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')
    go(None)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, STEPS]
    assert all(line["loss"] < 10 for line in lines)
    assert set(lines[0]) == {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_second"}

"""A sweep as a user starts it, tracked offline and read back with W&B's own reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import yaml
from leet import contents, history, inspect, offline_runs


@pytest.mark.slow
def test_a_sweep_is_a_group_of_runs_that_the_built_in_charts_compare(
    tmp_path: Path, corpus: Path, shared_cache: Path
) -> None:
    words = ["train", "-m", *tiny.TINY, f"data.paths={corpus}", "encoding=rope,alibi"]
    words += ["eval.protocols=[fixed-target,positions]", "tracking=wandb", "tracking.artifact=results"]
    done = tiny.spawn(*words, cwd=tmp_path, POSENC_CACHE=str(shared_cache), WANDB_DATA_DIR=str(tmp_path))
    assert done.code == 0, done.err
    runs = sorted((tmp_path / "runs" / "default").iterdir())
    assert len(runs) == 2
    groups = set()
    for run in runs:
        (directory,) = offline_runs(run)
        whole = json.loads(inspect(directory, "--summary"))
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert whole["config"]["encoding"]["name"] == config["encoding"]["name"]
        assert whole["config"] == json.loads(json.dumps(config))  # all of it, resolved
        assert whole["tags"] == [config["encoding"]["name"], "default"]
        lines = contents(directory)
        (entry,) = [line["run"] for line in lines if line["type"] == "run"]
        groups.add(entry["run_group"])
        stored = json.loads((run / "results.json").read_text())["records"]
        losses = {r["window"]: r["nats"] for r in stored if r["protocol"] == "fixed-target"}
        rows = history(directory)
        curve = {r["eval/window"]: r["eval/fixed-target/nats"] for r in rows if "eval/fixed-target/nats" in r}
        assert curve == pytest.approx(losses) and sorted(curve) == [16, 32, 64]
        assert max(row["eval/position"] for row in rows if "eval/position" in row) == 64
        assert [row["train/step"] for row in rows if "train/step" in row] == [10, 20, 30, 40]
        assert whole["summary"]["eval/fixed-target/nats@4x"] == pytest.approx(losses[64])
        assert {"plots/context", "plots/positions", "plots/training"} <= {
            name.split("._type")[0] for row in rows for name in row
        }
        kept = [line["artifact"]["name"] for line in lines if line["type"] == "artifact"]
        assert run.name in kept
    assert len(groups) == 1 and "default-" in groups.pop()


@pytest.mark.slow
def test_a_tracked_run_is_continued_and_evaluated_again_beside_the_links_of_wandb(
    tmp_path: Path, corpus: Path, shared_cache: Path
) -> None:
    words = ["train", *tiny.TINY, f"data.paths={corpus}", "encoding=nope", "tracking=wandb"]
    env = {"POSENC_CACHE": str(shared_cache), "WANDB_DATA_DIR": str(tmp_path), "WANDB_MODE": "offline"}
    assert tiny.spawn(*words, cwd=tmp_path, **env).code == 0
    (run,) = (tmp_path / "runs" / "default").iterdir()
    assert any(path.is_symlink() for path in (run / "wandb").rglob("*"))  # else this test shows nothing
    again = tiny.spawn(*words, "eval.lengths=[1x,2x,4x,8x]", cwd=tmp_path, **env)
    assert again.code == 0, again.err
    other = tiny.spawn("eval", f"run={run}", "eval.protocols=[sliding]", cwd=tmp_path, **env)
    assert other.code == 0, other.err
    (run / "records" / "wandb").symlink_to(tmp_path)  # the same name elsewhere is not W&B's
    refused = tiny.spawn(*words, "eval.lengths=[1x]", cwd=tmp_path, **env)
    assert refused.code == 1 and "link" in refused.err, refused.err

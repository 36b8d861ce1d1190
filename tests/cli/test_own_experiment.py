"""The experiment file of the tutorial says what the tutorial says."""

from __future__ import annotations

import re
from pathlib import Path

import tiny

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse


def test_the_experiment_of_the_tutorial(place: Path) -> None:
    page = (tiny.ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(# @package _global_\n.*?)^```", page, re.S | re.M)
    file = place / "mine" / "experiment" / "longer.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    jobs = compose_jobs("train", parse(["--config-dir", "mine", "experiment=longer", "seed=0"]))
    assert jobs.sweep and len(jobs.jobs) == 4
    found = [job.settings for job in jobs.jobs]
    assert {one["encoding"]["name"] for one in found} == {"alibi", "fox", "cable", "stick_breaking"}
    assert {(one["context_length"], one["seed"], one["experiment_name"]) for one in found} == {
        (128, 0, "longer")
    }
    assert found[0]["eval"]["protocols"] == ["fixed-target", "far-copy"]

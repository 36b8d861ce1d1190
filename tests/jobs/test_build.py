"""From settings to a model, and to what results.json says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posenc.jobs.build import build_model, run_facts
from posenc.jobs.compose import compose_jobs, parse
from posenc.jobs.validate import train_job


def facts_of(corpus: Path, *overrides: str) -> Any:
    line = parse(["model=nano", "data=files", f"data.paths={corpus}", "train.precision=fp32", *overrides])
    job = train_job(compose_jobs("train", line).jobs[0].settings)
    model = build_model(job.settings, job.shape, 256)
    return run_facts(
        job.settings,
        model,
        fingerprint="f",
        name="n",
        digest="d",
        device=torch.device("cpu"),
        tokens=1,
        steps=1,
        seconds=1.0,
        final_loss=None,
        versions={},
    )


@pytest.mark.parametrize(
    ("overrides", "group", "said"),
    [
        (["encoding=t5"], "encoding", {"max_distance": 64}),
        (["encoding=t5", "encoding.max_distance=50"], "encoding", {"max_distance": 50}),
        (["encoding=fire", "context_length=32"], "encoding", {"threshold": 8.0}),
        (["encoding=rope", "positions=randomized"], "positions", {"name": "randomized", "max": 1024}),
        (["encoding=rope", "attention=mla"], "attention", {"kv_rank": 128, "rope_dim": 16, "window": None}),
    ],
)
def test_what_is_null_has_its_number_in_the_facts(
    corpus: Path, place: Path, overrides: list[str], group: str, said: dict[str, Any]
) -> None:
    found = facts_of(corpus, *overrides)[group]
    assert {key: found[key] for key in said} == said


def test_parts_of_a_sum_have_theirs(corpus: Path, place: Path) -> None:
    parts = facts_of(corpus, "encoding=sum", "encoding.parts=[t5,rope]")["encoding"]["parts"]
    assert [part["name"] for part in parts] == ["t5", "rope"] and parts[0]["max_distance"] == 64

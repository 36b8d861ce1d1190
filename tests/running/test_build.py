"""From settings to a model, and to what results.json says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.sum import Composed
from posenc.running.build import _written_out, build_model, run_facts
from posenc.running.train_job import train_job


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
        peak_memory_bytes=None,
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


class Mix(Composed):
    """Somebody's own sum, whose parts go by another name."""

    name = "mix"

    def __init__(self, shape: Shape, *, of: list[Encoding]) -> None:
        super().__init__(shape, of)


class Club(Encoding):
    name = "club"
    members = (1, 2)  # nothing to do with parts


def test_what_others_made_of_parts_is_written_out_as_far_as_it_can_be() -> None:
    t5 = build_encoding("t5", d_model=16, n_heads=2, head_dim=8, n_layers=1, train_length=32)
    settings = {"name": "mix", "of": [{"name": "t5", "max_distance": None}]}
    assert _written_out(settings, Mix(t5.shape, of=[t5]))["of"][0]["max_distance"] == 32
    assert _written_out({"name": "club"}, Club(t5.shape)) == {"name": "club"}

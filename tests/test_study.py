"""docs/study.md is what its records say: every table and figure made anew, nothing trained."""

from __future__ import annotations

import subprocess
import sys

import tiny

from posenc.results import load_runs

RECORDS = tiny.ROOT / "docs" / "study"


def test_records_are_compact_and_of_finished_runs_at_one_recipe() -> None:
    runs = load_runs([RECORDS])
    assert runs and all(run.state == "finished" and run.facts is not None for run in runs)
    assert sum(file.stat().st_size for file in RECORDS.iterdir()) < 5e6
    facts = [run.facts for run in runs if run.facts is not None]
    assert {one["corpus"]["fingerprint"] for one in facts} == {facts[0]["corpus"]["fingerprint"]}
    assert {(one["tokens"], one["precision"], one["model"]["name"]) for one in facts} == {
        (3999744, "fp32", "nano")
    }


def test_every_table_and_figure_is_what_the_records_give() -> None:
    command = [sys.executable, "scripts/study_page.py", "--check"]
    done = subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True, env=tiny.environment())
    assert done.returncode == 0, done.stdout + done.stderr

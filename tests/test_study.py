"""The README and docs/study.md say what the records say: tables and figures made anew, nothing trained."""

import subprocess
import sys

import pytest
import tiny

from posenc.results import load_runs

sys.path.insert(0, str(tiny.ROOT / "scripts"))

RECORDS = tiny.ROOT / "docs" / "study"


@pytest.mark.parametrize(("records", "context_length"), [(RECORDS, 64), (RECORDS.parent / "study-128", 128)])
def test_records_are_compact_and_of_finished_runs_of_one_recipe(records, context_length):
    runs = load_runs([records])
    assert runs and all(run.state == "finished" and run.facts is not None for run in runs)
    assert sum(file.stat().st_size for file in records.iterdir()) < 5e6
    recipes = {
        (
            run.facts["corpus"]["fingerprint"],
            run.facts["tokens"],
            run.facts["precision"],
            run.facts["model"]["name"],
            run.facts["context_length"],
            (run.config or {})["train"]["lr"],
        )
        for run in runs
        if run.facts is not None
    }
    (recipe,) = recipes
    assert recipe[1:] == (3999744, "fp32", "nano", context_length, 0.002)
    protocols = {"fixed-target", "sliding", "nonoverlapping", "positions", "induction", "far-copy"}
    for run in runs:
        assert protocols <= {record["protocol"] for record in run.records}, run.name


def test_every_table_and_figure_is_what_the_records_give():
    command = [sys.executable, "scripts/study_page.py", "--check"]
    done = subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True, env=tiny.environment())
    assert done.returncode == 0, done.stdout + done.stderr

"""Forty mistakes of newcomers: each is answered by what was meant."""

import shlex
import shutil
from pathlib import Path

import pytest
import tiny
import yaml
from fake_runs import only_run

MISTAKES = yaml.safe_load(Path(__file__).with_name("newcomer_mistakes.yaml").read_text())
RUN = "runs/default/rope-nano-T64-s0-12fada63"


@pytest.fixture
def furnished(working_folder, corpus, trained_once, monkeypatch):
    """Put what a mistake needs into the working folder; nothing trains or measures."""
    for name in ("posenc.running.jobs.run_job", "posenc.running.sweep.run_sweep"):
        monkeypatch.setattr(name, lambda *_: 0)

    def furnish(mistake):
        names = {*mistake.get("folder", [])}
        if "runs" in names or "$RUN" in mistake["typed"]:
            shutil.copytree(only_run(trained_once), working_folder / RUN)
        if "texts" in names:
            shutil.copytree(corpus, working_folder / "texts")
        if "mine.py" in names:
            (working_folder / "mine.py").write_text(tiny.PLUGIN)

    return furnish


def is_answered(mistake, result):
    """Tell whether the answer names what was meant, or does it."""
    if result.code == 2:
        lines = result.err.splitlines()
        allowed = [line for line in lines if line.startswith("  allowed: ")]
        others = "\n".join(line for line in lines if line not in allowed)
        is_named = all(name in others for name in mistake["names"])
        return is_named and all(name in "\n".join(allowed) for name in mistake.get("listed", []))
    prints = mistake.get("prints", [])
    return result.code == 0 and bool(prints) and all(text in result.out + result.err for text in prints)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake["typed"] for mistake in MISTAKES])
def test_the_answer_to_a_mistake_names_what_was_meant(posenc, furnished, mistake):
    furnished(mistake)
    _, *words = shlex.split(mistake["typed"].replace("$RUN", RUN))
    result = posenc(*words)
    assert is_answered(mistake, result), result
    assert len(result.err.splitlines()) <= 12
    assert "Traceback" not in result.err


def test_there_are_forty():
    assert len(MISTAKES) == 40

"""`posenc sample`: two continuations side by side, on 80 columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

import posenc as px

Posenc = Callable[..., tiny.Result]
PROMPT = "the tale of the sea = the stone\n\x1bis that of the tide, as it was told"


def columns(out: str) -> tuple[list[str], list[str]]:
    rows = [line.ljust(41) for line in out[out.index("\n\n") + 2 :].splitlines()]
    assert all(row[38:41] == " | " for row in rows[:2]) and rows[1].startswith("-" * 38)
    return [row[:38].rstrip() for row in rows[2:]], [row[41:] for row in rows[2:]]


def test_cropped_and_whole_side_by_side(run_copy: Path, posenc: Posenc) -> None:
    done = posenc("sample", f"run={run_copy}", f"prompt={PROMPT}", "tokens=30", "seed=3")
    assert (
        done.code == 0 and all(len(line) <= 80 for line in done.out.splitlines()) and "\x1b" not in done.out
    )
    assert "the last 16 tokens (T = 16)" in done.out and f"all {len(PROMPT)} tokens" in done.out
    run = px.load(run_copy)
    for side, context in zip(columns(done.out), (16, None), strict=True):
        said = run.generate(PROMPT, context, tokens=30, seed=3)
        plain = "".join(c for c in said if c.isascii() and c.isprintable())
        assert plain.replace(" ", "") in "".join(side).replace(" ", "") or not said.isprintable()
    assert posenc("sample", f"run={run_copy}", f"prompt={PROMPT}", "tokens=30", "seed=3").out == done.out


def test_without_a_prompt_a_test_document_is_continued(run_copy: Path, posenc: Posenc) -> None:
    done = posenc("sample", f"run={run_copy.name}")
    assert done.code == 0 and "the end of a text of 128 tokens" in done.out  # 8T


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["prompt=x"], "run: is needed"),
        (["run=nowhere"], "run=nowhere: there is no such folder"),
        (["run=RUN", "promt=x"], "did you mean: prompt"),
        (["run=RUN", "tokens=many"], "tokens=many: is no number"),
        (["run=RUN", "prompt=x", "tokens=0"], "tokens=0: too small"),
        (["run=RUN", "prompt=x", "temperature=-1"], "temperature=-1: out of range"),
    ],
)
def test_wrong_input(run_copy: Path, posenc: Posenc, words: list[str], says: str) -> None:
    done = posenc("sample", *(word.replace("RUN", str(run_copy)) for word in words))
    assert done.code == 2 and says in done.err and not done.out, done

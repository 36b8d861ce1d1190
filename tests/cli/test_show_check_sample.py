"""`posenc show`, `check` and `sample` as people call them: pictures, verdicts, continuations."""

import json
import shutil
from pathlib import Path

import tiny
from fake_runs import only_run, stamps

import posenc as px
from posenc.laws import LAWS, statement

PROMPT = "the tale of the sea = the stone\n\x1bis that of the tide, as it was told"


def test_a_file_is_written_named_and_the_same_again(posenc, place):
    arguments = ["show", "encoding=alibi", "context_length=16", "--out", "here.svg"]
    first = posenc(*arguments)
    assert (first.code, first.out, first.err) == (0, "here.svg\n", ""), first
    content = (place / "here.svg").read_bytes()
    assert content.startswith(b"<svg") and [path.name for path in place.iterdir()] == ["here.svg"]
    again = tiny.spawn(*arguments, cwd=place, PYTHONHASHSEED="77", TZ="Asia/Tokyo")
    assert again.code == 0 and (place / "here.svg").read_bytes() == content


def test_text_in_a_pipe_fits_and_has_no_colours(place):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    result = tiny.spawn("show", "encoding=sinusoidal", cwd=place, **plain)
    assert result.code == 0 and not result.err, result
    lines = result.out.splitlines()
    assert lines[0] == "sinusoidal" and fits(result.out)
    assert "--out FILE.png" in lines[-1] and "\x1b" not in result.out
    assert any(line.startswith("PE(t)") for line in lines)
    assert not list(place.iterdir())


def test_what_the_title_says(posenc, place):
    (place / "mine.py").write_text(tiny.PLUGIN)
    given = posenc("show", "encoding=rope", "encoding.base=500.0", "context_length=32", "model=tiny").out
    assert "T = 32, 8 heads of 32, d = 256, encoding.base=500.0" in given and "initial values" not in given
    learned = posenc("show", "encoding=learned", "encoding.beyond=clamp", "seed=3").out
    assert "initial values, seed 3" in learned and "past T: clamp" in learned.replace("\n", " ")
    assert "Keys seen in every layer" in posenc("show", "encoding=nope", "attention.window=4").out
    assert "Positions drawn in training" in posenc("show", "encoding=rope", "positions=offset").out
    assert posenc("show", "encoding=./mine.py", "encoding.strength=2.0").out.startswith("mine\nscore $ _ij\n")


def test_a_trained_run_is_read_and_left_as_it_is(place, train, posenc):
    assert train("encoding=learned").code == 0
    run = only_run(place / "runs")
    before = stamps(run)
    trained = posenc("show", f"run={run}")
    assert trained.code == 0, trained
    text = trained.out.replace("\n  ", " ").replace("\n", " ")
    assert f"run {run.name}, step {tiny.STEPS}" in text and "initial values" not in text
    start = posenc("show", "encoding=learned", *tiny.MODEL, "context_length=16").out
    assert start.split("PE(t)")[1] != trained.out.split("PE(t)")[1]
    assert stamps(run) == before
    shutil.rmtree(run / "checkpoints")
    assert posenc("show", f"run={run}").code == 2


def only(monkeypatch, *laws):
    monkeypatch.setattr("posenc.running.law_check.LAWS", {law: LAWS[law] for law in laws})


def fits(text):
    return all(len(line.rstrip()) <= 80 for line in text.splitlines())


def test_a_good_one(posenc, place, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = posenc("check", "encoding=rope", "encoding.base=500.0")
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert lines[0].startswith(f"rope: {len(LAWS)} laws at d_model 32, 2 layers, 4 heads, T = 32")
    assert [line.split()[0] for line in lines[1:-1]] == list(LAWS)
    assert lines[-1] == f"{len(LAWS) - 1} hold, 1 do not apply, 0 fail"
    assert fits(result.out) and "…" not in result.out and not list(place.iterdir())


def test_a_broken_plug_in_is_named_with_its_law(posenc, place, monkeypatch):
    only(monkeypatch, "shift", "penalty")
    (place / "mine.py").write_text(tiny.PLUGIN)
    broken = posenc("check", "encoding=./mine.py", "encoding.strength=-1.0", "--json")
    assert broken.code == 1, broken
    document = json.loads(broken.out)
    shift, penalty = document["verdicts"]
    assert (shift["law"], shift["verdict"]) == ("shift", "pass")
    why = {"reason": "its bias rises with the distance", "statement": statement("penalty")}
    assert penalty.items() >= {"law": "penalty", "verdict": "fail", **why}.items()
    assert document["encoding"] == {"name": "mine", "strength": -1.0} and document["passed"] is False
    assert document["model"]["d_model"] == 32 and document["context_length"] == 32
    result = posenc("check", "encoding=./mine.py", "encoding.strength=1.0,-2.5")
    assert result.code == 1 and fits(result.out) and result.out.splitlines()[1:3] == ["shift", "| penalty"]
    assert "+ F mine encoding.strength=-2.5" in result.out.splitlines()
    assert "mine encoding.strength=-2.5 fails penalty" in result.out


def test_all_of_them_but_those_that_refuse(posenc, monkeypatch):
    """One that has no use for a setting is named; the others are checked."""
    only(monkeypatch, "count")
    few = {"nope": Path(), "rope": Path(), "alibi": Path(), "t5": Path()}
    monkeypatch.setattr("posenc.cli.check.choice_files", lambda group, folder: few)
    result = posenc("check", "--all", "positions=randomized")
    assert result.code == 1 and result.err == "", result
    assert "nope is not checked" in result.out and "rope" in result.out
    documents = json.loads(posenc("check", "--all", "positions=randomized", "--json").out)
    refused = {one["encoding"]["name"] for one in documents if "refused" in one}
    assert "nope" in refused and len(documents) == 4


def columns(out):
    rows = [line.ljust(41) for line in out[out.index("\n\n") + 2 :].splitlines()]
    assert all(row[38:41] == " | " for row in rows[:2]) and rows[1].startswith("-" * 38)
    return "".join(row[:38] for row in rows[2:]), "".join(row[41:] for row in rows[2:])


def test_cropped_and_whole_side_by_side(run_copy, posenc):
    words = ("sample", f"run={run_copy}", f"prompt={PROMPT}", "tokens=30", "seed=3")
    done = posenc(*words)
    assert done.code == 0 and fits(done.out) and "\x1b" not in done.out
    assert "the last 16 tokens (T = 16)" in done.out and f"all {len(PROMPT)} tokens" in done.out
    run = px.load(run_copy)
    for side, context in zip(columns(done.out), (16, None), strict=True):
        said = run.generate(PROMPT, context, tokens=30, seed=3)
        plain = "".join(c for c in said if c.isascii() and c.isprintable())
        assert plain.replace(" ", "") in side.replace(" ", "") or not said.isprintable()
    assert posenc(*words).out == done.out
    own = posenc("sample", f"run={run_copy.name}")  # without a prompt the beginning of a test document
    assert own.code == 0 and "the end of a text of 128 tokens" in own.out  # 8T

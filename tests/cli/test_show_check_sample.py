"""`posenc show`, `check` and `sample` as people call them: pictures, verdicts, continuations."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
from fake_runs import only_run, stamps
from in_process import called_in

import posenc as px
from posenc.core.errors import UserError
from posenc.laws import LAWS, statement

PROMPT = "the tale of the sea = the stone\n\x1bis that of the tide, as it was told"


@pytest.mark.slow
def test_a_file_is_written_named_and_the_same_again(posenc, working_folder):
    arguments = ["show", "encoding=alibi", "context_length=16", "--out", "here.svg"]
    first = posenc(*arguments)
    assert first.code == 0, first
    assert first.out == "here.svg\n"
    assert first.err == ""
    content = (working_folder / "here.svg").read_bytes()
    assert content.startswith(b"<svg")
    assert [path.name for path in working_folder.iterdir()] == ["here.svg"]

    again = tiny.spawn(*arguments, cwd=working_folder, PYTHONHASHSEED="77", TZ="Asia/Tokyo")

    assert again.code == 0
    assert (working_folder / "here.svg").read_bytes() == content


def test_text_in_a_pipe_fits_and_has_no_colours(working_folder):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    result = tiny.spawn("show", "encoding=sinusoidal", cwd=working_folder, **plain)
    assert result.code == 0, result
    assert not result.err
    lines = result.out.splitlines()
    assert lines[0] == "sinusoidal"
    assert "--out FILE.png" in lines[-1]
    assert any(line.startswith("PE(t)") for line in lines)
    assert fits(result.out)
    assert "\x1b" not in result.out
    assert not list(working_folder.iterdir())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            "encoding=rope encoding.base=500.0 context_length=32 model=tiny",
            "T = 32, 8 heads of 32, d = 256, encoding.base=500.0",
        ),
        ("encoding=learned encoding.beyond=clamp seed=3", "initial values, seed 3"),
        ("encoding=learned encoding.beyond=clamp seed=3", "past T: clamp"),
        ("encoding=nope attention.window=4", "Keys seen in every layer"),
        ("encoding=rope positions=offset", "Positions drawn in training"),
    ],
)
def test_what_the_title_says(posenc, arguments, text):
    assert text in posenc("show", *arguments.split()).out.replace("\n", " ")


def test_without_learned_values_no_seed_is_named(posenc):
    assert "initial values" not in posenc("show", "encoding=rope").out


def test_where_values_are_learned_it_is_said_to_train_first(posenc):
    text = posenc("show", "encoding=t5").out.replace("\n", " ")
    assert "train first, then posenc" in text
    assert "run=DIR draws what was learned" in text


def test_t_and_8t_are_among_the_printed_distances(posenc):
    (heads,) = [line for line in posenc("show", "encoding=alibi").out.splitlines() if "distance" in line]
    assert {"T", "8T"} <= set(heads.split())


def test_an_encoding_of_the_user_is_drawn(posenc, working_folder):
    (working_folder / "mine.py").write_text(tiny.PLUGIN)
    out = posenc("show", "encoding=./mine.py", "encoding.strength=2.0").out
    assert out.startswith("mine\nscore $ _ij\n")


@pytest.fixture(scope="module")
def learned_folder(tmp_path_factory, corpus, shared_cache):
    """A working folder with a trained run of an encoding with learned values, and with options."""
    folder = tmp_path_factory.mktemp("learned")
    choices = ("encoding=learned", "encoding.beyond=clamp", "attention.gate=head", "positions=offset")
    arguments = ("train", *tiny.TINY, f"data.paths={corpus}", *choices)
    assert called_in(folder, shared_cache, *arguments).code == 0
    return folder


@pytest.fixture
def learned_run(learned_folder, working_folder):
    """A copy of that run."""
    shutil.copytree(learned_folder / "runs", working_folder / "runs")
    return only_run(working_folder / "runs")


def test_the_title_of_a_trained_run_has_its_name_and_step(learned_run, posenc):
    result = posenc("show", f"run={learned_run}")
    assert result.code == 0, result
    text = result.out.replace("\n  ", " ").replace("\n", " ")
    assert f"run {learned_run.name}, step {tiny.STEPS}" in text
    assert "initial values" not in text


def test_the_title_of_a_trained_run_names_its_options(learned_run, posenc):
    text = posenc("show", f"run={learned_run}").out.replace("\n  ", " ")
    assert "encoding.beyond=clamp, attention.gate=head, positions=offset, run" in text


def test_a_trained_run_is_drawn_with_its_learned_values(learned_run, posenc):
    trained = posenc("show", f"run={learned_run}").out
    initial = posenc("show", "encoding=learned", *tiny.MODEL, "context_length=16").out
    assert trained.split("PE(t)")[1] != initial.split("PE(t)")[1]


def test_a_trained_run_is_drawn_on_its_own_text(learned_run, posenc):
    text = posenc("show", f"run={learned_run}").out
    for title in ("Attention of the trained model", "Attention on the first token", "Entropy of attention"):
        assert title in text
    assert "Loss by position, windows of 8T" in text
    assert fits(text)


def test_without_its_text_a_run_is_drawn_as_far_as_it_can_be(learned_run, posenc, monkeypatch):
    def is_gone(settings, **_):
        raise UserError("data.paths", "/gone", "there is no such folder")

    monkeypatch.setattr("posenc.running.drawing.plan_evaluation", is_gone)
    result = posenc("show", f"run={learned_run}")
    assert result.code == 0
    assert "attention on text is not drawn: there is no such folder" in result.out.replace("\n  ", " ")
    assert "PE(t)" in result.out


def test_a_trained_run_is_left_as_it_is(learned_run, posenc):
    before = stamps(learned_run)
    posenc("show", f"run={learned_run}")
    assert stamps(learned_run) == before


def test_a_run_without_checkpoints_is_not_drawn(learned_run, posenc):
    shutil.rmtree(learned_run / "checkpoints")
    assert posenc("show", f"run={learned_run}").code == 2


def check_these_laws_alone(monkeypatch, *laws):
    monkeypatch.setattr("posenc.running.law_check.LAWS", {law: LAWS[law] for law in laws})


def fits(text):
    return all(len(line.rstrip()) <= 80 for line in text.splitlines())


def test_a_sound_encoding_has_a_line_for_every_law(posenc, working_folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = posenc("check", "encoding=rope", "encoding.base=500.0")
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert lines[0].startswith(f"rope: {len(LAWS)} laws at d_model 32, 2 layers, 4 heads, T = 32")
    assert [line.split()[0] for line in lines[1:-1]] == list(LAWS)
    assert lines[-1] == f"{len(LAWS) - 1} hold, 1 does not apply, 0 fail"
    assert lines[-2].split(maxsplit=2)[2] == "ruled out by its code: per_layer, key_offset; 13 of 15 fit"
    assert fits(result.out)
    assert "…" not in result.out
    assert not list(working_folder.iterdir())


FLOAT32_ANGLES = """import torch

from posenc.encodings.base import Encoding
from posenc.encodings.shared.rotary import rotate_pairs


class Turned(Encoding):
    name = "turned"

    def turn(self, x, pos):
        theta = 10000 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
        angle = pos[:, None] * theta
        return rotate_pairs(x, angle.cos(), angle.sin(), "half")

    def rotate(self, q, k, q_pos, k_pos, layer):
        return self.turn(q, q_pos), self.turn(k, k_pos)
"""


@pytest.fixture
def plugin(working_folder, monkeypatch):
    """An encoding of the user, whose bias rises with the distance if its strength is negative."""
    check_these_laws_alone(monkeypatch, "shift", "penalty")
    (working_folder / "mine.py").write_text(tiny.PLUGIN)
    return "encoding=./mine.py"


def test_a_broken_plug_in_is_named_with_its_law(posenc, plugin):
    result = posenc("check", plugin, "encoding.strength=-1.0", "--json")
    assert result.code == 1, result
    document = json.loads(result.out)
    shift, penalty = document["verdicts"]
    assert shift["law"] == "shift"
    assert shift["verdict"] == "pass"
    reason = {"reason": "its bias rises with the distance", "statement": statement("penalty")}
    assert penalty.items() >= {"law": "penalty", "verdict": "fail", **reason}.items()
    assert document["passed"] is False


def test_angles_in_float32_are_answered_with_what_mends_them(posenc, working_folder, monkeypatch):
    check_these_laws_alone(monkeypatch, "float32")
    (working_folder / "turned.py").write_text(FLOAT32_ANGLES)
    result = posenc("check", "encoding=./turned.py")
    assert result.code == 1
    assert "angles, position times frequency, need float64" in " ".join(result.out.split())


def test_the_document_of_a_check_says_what_was_checked(posenc, plugin):
    document = json.loads(posenc("check", plugin, "encoding.strength=1.0", "--json").out)
    assert document["passed"] is True
    assert document["encoding"] == {"name": "mine", "strength": 1.0}
    assert document["model"]["d_model"] == 32
    assert document["context_length"] == 32


def test_several_encodings_are_a_matrix_and_a_line_for_each_broken_law(posenc, plugin):
    result = posenc("check", plugin, "encoding.strength=1.0,-2.5")
    assert result.code == 1
    assert fits(result.out)
    lines = result.out.splitlines()
    assert lines[1:3] == ["shift", "| penalty"]
    assert "+ + mine encoding.strength=1.0" in lines
    assert "+ F mine encoding.strength=-2.5" in lines
    assert "mine encoding.strength=-2.5 fails penalty" in result.out


@pytest.fixture
def four_encodings(monkeypatch):
    """`check --all` by one law over four encodings, one of which refuses randomized positions."""
    check_these_laws_alone(monkeypatch, "count")
    names = {"nope": Path(), "rope": Path(), "alibi": Path(), "t5": Path()}
    monkeypatch.setattr("posenc.cli.check.choice_files", lambda group, folder: names)


def test_all_of_them_but_those_that_refuse(posenc, four_encodings):
    result = posenc("check", "--all", "positions=randomized")
    assert result.code == 1, result
    assert result.err == ""
    assert "nope is not checked" in result.out
    assert "rope" in result.out


def test_those_that_refuse_are_in_the_json(posenc, four_encodings):
    documents = json.loads(posenc("check", "--all", "positions=randomized", "--json").out)
    refused = {document["encoding"]["name"] for document in documents if "refused" in document}
    assert "nope" in refused
    assert len(documents) == 4


def columns(out):
    """Return the text of the left and of the right column."""
    table = out[out.index("\n\n") + 2 :]
    rows = [line.ljust(41) for line in table.splitlines()]
    assert all(row[38:41] == " | " for row in rows[:2])
    assert rows[1].startswith("-" * 38)
    return "".join(row[:38] for row in rows[2:]), "".join(row[41:] for row in rows[2:])


@pytest.fixture
def sampled(run_copy):
    """The words of a command, and the run."""
    return ("sample", f"run={run_copy}", f"prompt={PROMPT}", "tokens=30", "seed=3")


def test_cropped_and_whole_have_their_heads(sampled, posenc):
    result = posenc(*sampled)
    assert result.code == 0
    assert fits(result.out)
    assert "\x1b" not in result.out
    assert "the last 16 tokens (T = 16)" in result.out
    assert f"all {len(PROMPT)} tokens" in result.out


@pytest.mark.parametrize(("side", "context"), [(0, 16), (1, None)], ids=["cropped", "whole"])
def test_each_side_is_what_the_run_generates(sampled, run_copy, posenc, side, context):
    column = columns(posenc(*sampled).out)[side]
    text = px.load(run_copy).generate(PROMPT, context, tokens=30, seed=3)
    plain = "".join(c for c in text if c.isascii() and c.isprintable())
    assert plain.replace(" ", "") in column.replace(" ", "") or not text.isprintable()


def test_a_sample_is_the_same_again(sampled, posenc):
    assert posenc(*sampled).out == posenc(*sampled).out


def test_without_a_prompt_it_is_the_beginning_of_a_test_document(run_copy, posenc):
    result = posenc("sample", f"run={run_copy.name}")
    assert result.code == 0
    assert "the end of a text of 128 tokens" in result.out  # 8T

"""`encoding=./mine.py`: an encoding straight from its file."""

import pytest
import tiny

import posenc as px
from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.encodings.registry import sources_of


@pytest.fixture
def mine(working_folder):
    """A class with a parameter, whose default is in a YAML beside it."""
    (working_folder / "mine.py").write_text(tiny.PLUGIN)
    (working_folder / "mine.yaml").write_text("strength: 1.5\n")
    return working_folder / "mine.py"


def jobs(*words):
    composed = compose_jobs("train", parse(list(words))).jobs
    return [(one.settings.encoding.plain(), one.settings.plugins) for one in composed]


def test_ways_to_say_it(mine):
    usual = {"name": "mine", "strength": 1.5}
    for said in ("./mine.py", "mine.py", str(mine), "mine.py:Mine", "'./mine.py:Mine'"):
        file = said.strip("'").removesuffix(":Mine")
        assert jobs(f"encoding={said}") == [(usual, [file])]
    (changed,) = jobs("encoding=./mine.py", "encoding.strength=2", "plugins=[other]")
    assert changed == ({**usual, "strength": 2}, ["other", "./mine.py"])
    swept = jobs("-m", "encoding=rope,./mine.py:Mine", "seed=0,1")
    assert [(one["name"], files) for one, files in swept] == [("rope", [])] * 2 + [
        ("mine", ["./mine.py"])
    ] * 2
    mine.write_text(tiny.PLUGIN.replace("*, strength", "strength"))  # parameters need no star
    assert jobs("encoding=./mine.py", "encoding.strength=2")[0][0] == {"name": "mine", "strength": 2}


def test_files_that_are_refused(mine, working_folder):
    two = tiny.PLUGIN + tiny.PLUGIN.replace("Mine", "Other").replace('"mine"', '"two"')
    for name, text in {"two": two, "none": "x = 1\n", "broken": "def\n"}.items():
        (working_folder / f"{name}.py").write_text(text)
    for words, says in (
        (["encoding=./mina.py"], r"encoding=./mina.py: there is no such file"),
        (["encoding=./mine.py:Min"], r"(?s)has no such encoding.*did you mean: .*Mine"),
        (["encoding=./two.py"], r"(?s)several encodings.*two.py:Mine"),
        (["encoding=./none.py"], r"defines no encoding"),
        (["encoding=./broken.py"], r"cannot be imported \(SyntaxError"),
        (["encoding=./mine.py", "encoding.strenght=1"], r"did you mean: encoding.strength"),
    ):
        with pytest.raises(px.UserError, match=says):
            px.train(**dict(word.split("=") for word in words))


def test_it_is_trained_and_read_with_its_file_alone(mine, corpus):
    run = px.train(encoding="./mine.py", **tiny.keywords(corpus))
    assert run.config["encoding"] == {"name": "mine", "strength": 1.5} and run.nll("some text").shape == (8,)
    assert px.load(run.path, plugins=["./mine.py"]).nll("some text").tolist() == run.nll("some text").tolist()
    with pytest.raises(px.UserError, match=r"(?s)no such encoding.*plugins=\[./mine.py\]: if you trust"):
        px.load(run.path).nll("some text")
    assert [row.label for row in run.runs().compare().tables[0].rows] == ["mine"]  # needs no code
    before = sources_of(run.config["encoding"], ["./mine.py"])
    mine.write_text(tiny.PLUGIN.replace("log1p", "sqrt"))  # in a notebook the next call has the new text
    assert sources_of(run.config["encoding"], ["./mine.py"]) != before
    with pytest.raises(px.UserError, match="trained by other code"):
        px.load(run.path, plugins=["./mine.py"]).nll("some text")

"""`posenc show` as people call it: files, text, trained runs."""

import shutil

import tiny

PLUGIN = '''
"""A bias of one's own."""
import torch
from posenc.encodings.base import Encoding, Shape


class Mine(Encoding):
    """By the logarithm of the distance."""

    name = "mine"
    paper = past_training = "none"
    formula = "score $ _ij"
    acts_on = "bias"
    learned = "0"
    relative = penalty = True

    def __init__(self, shape: Shape, *, strength: float) -> None:
        super().__init__(shape)
        self.strength = strength

    def distance_bias(self, r, layer):
        return -self.strength * torch.log1p(r.float()).expand(self.shape.n_heads, -1)
'''


def own_encoding(place):
    """Write a plug-in with a bias; the arguments that make it known."""
    (place / "my_bias.py").write_text(PLUGIN)
    (place / "conf" / "encoding").mkdir(parents=True)
    (place / "conf" / "encoding" / "mine.yaml").write_text("name: mine\nstrength: 1.0\n")
    return ["plugins=[my_bias]", "--config-dir", "conf", "encoding=mine"]


def test_a_file_is_written_named_and_the_same_again(posenc, place):
    arguments = ["show", "encoding=alibi", "context_length=16", "--out", "here.svg"]
    first = posenc(*arguments)
    assert (first.code, first.out, first.err) == (0, "here.svg\n", ""), first
    content = (place / "here.svg").read_bytes()
    assert content.startswith(b"<?xml") and [path.name for path in place.iterdir()] == ["here.svg"]
    again = tiny.spawn(*arguments, cwd=place, PYTHONHASHSEED="77", TZ="Asia/Tokyo")
    assert again.code == 0 and (place / "here.svg").read_bytes() == content


def test_text_in_a_pipe_fits_and_has_no_colours(place):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    result = tiny.spawn("show", "encoding=sinusoidal", cwd=place, **plain)
    assert result.code == 0 and not result.err, result
    lines = result.out.splitlines()
    assert lines[0] == "sinusoidal" and all(len(line) <= 80 for line in lines)
    assert "--out FILE.png" in lines[-1] and "\x1b" not in result.out
    assert any(line.startswith("PE(t)") for line in lines)
    assert not list(place.iterdir())


def test_what_the_title_says(posenc, place):
    mine = own_encoding(place)
    given = posenc("show", "encoding=rope", "encoding.base=500.0", "context_length=32", "model=tiny").out
    assert "T = 32, 8 heads of 32, d = 256, encoding.base=500.0" in given and "initial values" not in given
    learned = posenc("show", "encoding=learned", "encoding.beyond=clamp", "seed=3").out
    assert "initial values, seed 3" in learned and "past T: clamp" in learned.replace("\n", " ")
    assert "Keys seen in every layer" in posenc("show", "encoding=nope", "attention.window=4").out
    assert "Positions drawn in training" in posenc("show", "encoding=rope", "positions=offset").out
    assert posenc("show", *mine, "encoding.strength=2.0").out.startswith("mine\nscore $ _ij\n")


def test_a_trained_run_is_read_and_left_as_it_is(place, train, posenc):
    assert train("encoding=learned").code == 0
    (run,) = (path for path in (place / "runs" / "default").iterdir() if path.is_dir())
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    trained = posenc("show", f"run={run}")
    assert trained.code == 0, trained
    text = trained.out.replace("\n  ", " ").replace("\n", " ")
    assert f"run {run.name}, step {tiny.STEPS}" in text and "initial values" not in text
    start = posenc("show", "encoding=learned", *tiny.MODEL, "context_length=16").out
    assert start.split("PE(t)")[1] != trained.out.split("PE(t)")[1]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    shutil.rmtree(run / "checkpoints")
    assert posenc("show", f"run={run}").code == 2

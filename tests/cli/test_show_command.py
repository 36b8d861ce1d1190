"""`posenc show` as people call it: files, text, trained runs, wrong input."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

Posenc = Callable[..., tiny.Result]
MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}

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

    def __init__(self, shape: Shape, *, strength: float) -> None:
        super().__init__(shape)
        self.strength = strength

    def distance_bias(self, r, layer):
        return -self.strength * torch.log1p(r.float()).expand(self.shape.n_heads, -1)
'''


@pytest.fixture
def mine(place: Path) -> list[str]:
    """Arguments that make the plug-in known."""
    (place / "my_bias.py").write_text(PLUGIN)
    (place / "conf" / "encoding").mkdir(parents=True)
    (place / "conf" / "encoding" / "mine.yaml").write_text("name: mine\nstrength: 1.0\n")
    return ["plugins=[my_bias]", "--config-dir", "conf", "encoding=mine"]


@pytest.mark.parametrize(
    "format", ["png", *(pytest.param(name, marks=pytest.mark.slow) for name in ("svg", "pdf"))]
)
def test_a_file_is_written_and_named(place: Path, format: str) -> None:
    arguments = ["show", "encoding=alibi", "context_length=16", "--out", f"here.{format}"]
    first = tiny.spawn(*arguments, cwd=place)
    assert (first.code, first.out, first.err) == (0, f"here.{format}\n", ""), first
    content = (place / f"here.{format}").read_bytes()
    assert content.startswith(MAGIC[format])
    again = tiny.spawn(*arguments, cwd=place, PYTHONHASHSEED="77", TZ="Asia/Tokyo")
    assert again.code == 0 and (place / f"here.{format}").read_bytes() == content
    assert [path.name for path in place.iterdir()] == [f"here.{format}"]


def test_text_in_a_pipe_fits_and_has_no_colours(place: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    result = tiny.spawn("show", "encoding=sinusoidal", cwd=place, **plain)
    assert result.code == 0 and not result.err, result
    lines = result.out.splitlines()
    assert lines[0] == "sinusoidal" and all(len(line) <= 80 for line in lines)
    assert "--out FILE.png" in lines[-1] and "\x1b" not in result.out
    assert any(line.startswith("Added at the input") for line in lines)
    assert not list(place.iterdir())


def test_what_the_title_says(posenc: Posenc) -> None:
    given = posenc(
        "show", "encoding=rope", "encoding.base=500.0", "context_length=32", "seed=3", "model=tiny"
    )
    assert given.code == 0 and "T = 32, 8 heads of 32, d = 256, encoding.base=500.0" in given.out
    assert "initial values" not in given.out  # nothing is learned
    learned = posenc("show", "encoding=learned", "encoding.beyond=clamp", "seed=3").out
    assert "initial values, seed 3" in learned and "past T: clamp" in learned.replace("\n", " ")
    assert "Keys seen in every layer" in posenc("show", "encoding=nope", "attention.window=4").out
    assert "Positions drawn in training" in posenc("show", "encoding=rope", "positions=offset").out
    assert posenc("show", "encoding=rope", "attention=mla").code == 0


def test_an_encoding_of_ones_own(posenc: Posenc, place: Path, mine: list[str]) -> None:
    shown = posenc("show", *mine, "encoding.strength=2.0")
    assert shown.code == 0 and shown.out.startswith("mine\nscore $ _ij\n") and "Bias, each head" in shown.out
    assert posenc("show", *mine, "--out", "mine.png").code == 0
    assert (place / "mine.png").read_bytes().startswith(MAGIC["png"])


def test_a_trained_run(place: Path, train: Posenc, posenc: Posenc) -> None:
    assert train("encoding=learned").code == 0
    (run,) = (path for path in (place / "runs" / "default").iterdir() if path.is_dir())
    trained = posenc("show", f"run={run}")
    assert trained.code == 0, trained
    said = trained.out.replace("\n  ", " ").replace("\n", " ")
    assert f"run {run.name}, step {tiny.STEPS}" in said and "initial values" not in said
    start = posenc("show", "encoding=learned", *tiny.MODEL, "context_length=16").out
    assert start.split("Added at")[1] != trained.out.split("Added at")[1]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert posenc("show", f"run={run}", "--out", "run.svg").code == 0
    assert (place / "run.svg").read_bytes().startswith(MAGIC["svg"])
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_by_its_own_name_only_and_whole(run_copy: Path, posenc: Posenc) -> None:
    refused = posenc("show", f"run={run_copy}", "encoding=alibi")
    assert refused.code == 2 and "is the run's own" in refused.err and "plugins" in refused.err
    assert posenc("show", f"run={run_copy}", "plugins=[nowhere_to_be_found]").code == 2
    (link := run_copy / "link").symlink_to("/")
    assert posenc("show", f"run={run_copy}").code == 1
    link.unlink()
    (state,) = sorted((run_copy / "checkpoints").glob("*/state.json"))[-1:]
    changed = json.loads(state.read_text())
    state.write_text(json.dumps({**changed, "step": 9}))  # not what its manifest says
    for other in sorted((run_copy / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(other)
    damaged = posenc("show", f"run={run_copy}")
    assert damaged.code == 1 and "intact" in damaged.err
    shutil.rmtree(run_copy / "checkpoints")
    assert posenc("show", f"run={run_copy}").code == 2


def test_a_hostile_name_of_a_run_is_shown_as_plain_text(run_copy: Path, posenc: Posenc) -> None:
    hostile = run_copy.rename(run_copy.with_name("a\x1b[31m$\\frac$<b>"))
    shown = posenc("show", f"run='{hostile}'")
    assert shown.code == 0 and "run a\\x1b[31m$\\frac$<b>" in shown.out and "\x1b" not in shown.out, shown
    svg = posenc("show", f"run='{hostile}'", "--out", "hostile.svg")
    assert svg.code == 0 and "\x1b" not in Path("hostile.svg").read_text()


def test_a_runs_module_is_named(run_copy: Path, posenc: Posenc) -> None:
    config = (run_copy / "config.yaml").read_text()
    (run_copy / "config.yaml").write_text(
        config.replace("name: rope", "name: mine").replace("plugins: []", "plugins: [my_bias]")
    )
    refused = posenc("show", f"run={run_copy}")
    assert refused.code == 2 and "plugins=[my_bias]" in refused.err, refused


@pytest.mark.slow
def test_a_runs_module_is_named_and_never_imported(
    place: Path, train: Posenc, posenc: Posenc, mine: list[str]
) -> None:
    assert train(*mine).code == 0
    (run,) = (path for path in (place / "runs" / "default").iterdir() if path.is_dir())
    hidden = tiny.spawn("show", f"run={run}", cwd=place)
    assert hidden.code == 2 and "plugins=[my_bias]" in hidden.err
    assert tiny.spawn("show", f"run={run}", "plugins=[my_bias]", cwd=place).code == 0


WRONG = [
    (["encoding=roppe"], "did you mean: rope"),
    (["encoding=rope", "--out", "here.gif"], ".png, .svg, .pdf"),
    (["encoding=rope", "--out", "here"], ".png, .svg, .pdf"),
    (["encoding=rope", "--out", "nowhere/here.png"], "there is no folder nowhere"),
    (["encoding=rope", "--out"], "--out"),
    (["encoding.base=0.5"], "base=0.5"),
    (["encoding=nope", "positions=randomized"], "reads no position"),
    (["encoding=rope", "train.lr=7"], "nothing that the picture shows"),
    (["encoding=rope", "extend=yarn"], "run=DIR extend=NAME"),
    (["context_length=1"], "context_length=1"),
    (["model.n_heads=3"], "model.n_heads=3"),
    (["-m", "encoding=alibi,rope"], "one encoding at a time"),
    (["encoding=alibi,rope"], "one encoding at a time"),
    (["-m", "encoding=rope"], "leave out -m"),
    (["run=nowhere"], "no such folder"),
    (["run=nowhere", "encoding=rope"], "is the run's own"),
    (["plugins=[nowhere_to_be_found]", "encoding.name=mine"], "nowhere_to_be_found"),
    (["--cfg", "job"], "posenc train --cfg job"),
    (["--bogus"], "--bogus"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[" ".join(w[0]) for w in WRONG])
def test_wrong_input(posenc: Posenc, place: Path, arguments: list[str], says: str) -> None:
    result = posenc("show", *arguments)
    assert (result.code, result.out) == (2, "") and says in result.err, result
    assert len(result.err.splitlines()) < 10 and "Traceback" not in result.err
    assert not list(place.iterdir())


def test_a_folder_that_cannot_be_written(posenc: Posenc, place: Path) -> None:
    (place / "folder.png").mkdir()
    result = posenc("show", "encoding=alibi", "--out", "folder.png")
    assert result.code == 2 and "name a file" in result.err


HELP = """
import sys
from posenc import cli
sys.argv = ["posenc", "--help"]
try:
    cli.main()
except SystemExit:
    pass
assert "matplotlib" not in sys.modules and "torch" not in sys.modules
"""


def test_help_loads_no_matplotlib(place: Path) -> None:
    shown = tiny.spawn("show", "--help", cwd=place)
    assert shown.code == 0 and "--out" in shown.out
    result = subprocess.run([sys.executable, "-c", HELP], cwd=place, capture_output=True, text=True)
    assert result.returncode == 0 and "show" in result.stdout, result.stderr


def test_marks_that_lie_below_the_picture_are_left_out(posenc: Posenc, place: Path) -> None:
    """Wavelengths of a large base span more than the axis does."""
    shown = posenc("show", "encoding=rope", "encoding.base=1e9")
    assert shown.code == 0 and "Traceback" not in shown.err, shown.err

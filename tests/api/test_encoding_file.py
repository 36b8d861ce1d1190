"""`encoding=./mine.py`: an encoding straight from its file."""

import importlib
import re
import shutil
import sys

import pytest
import tiny
from fake_runs import only_run
from in_process import working_in

import posenc as px
from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.encodings.building import build_encoding, resolve_encoding, sources_of
from posenc.running.law_check import check_foreign_encoding
from posenc.running.model_parts import check_parts
from posenc.settings.tree import EncodingSettings

TEXT = "some text"


def write_encoding(folder):
    """Write a class with a parameter, whose default is in a YAML beside it."""
    (folder / "mine.py").write_text(tiny.PLUGIN)
    (folder / "mine.yaml").write_text("strength: 1.5\n")


@pytest.fixture
def mine(working_folder):
    """The path of a file with an encoding."""
    write_encoding(working_folder)
    return working_folder / "mine.py"


def composed(*overrides):
    """Return the settings of the encoding and the plug-ins of each job."""
    jobs = compose_jobs("train", parse(list(overrides))).jobs
    return [(job.settings.encoding.plain(), job.settings.plugins) for job in jobs]


def test_a_part_of_a_sum_has_the_parameters_beside_its_plug_in(mine):
    settings = resolve_encoding(EncodingSettings(name="sum", parts=["rope", "mine"]), ["./mine.py"])
    assert settings.parameters["parts"][1] == {"name": "mine", "strength": 1.5}


def test_a_parameter_of_a_part_wins_over_the_one_beside_its_plug_in(mine):
    part = {"name": "mine", "strength": 2}
    settings = resolve_encoding(EncodingSettings(name="sum", parts=["rope", part]), ["./mine.py"])
    assert settings.parameters["parts"][1] == {"name": "mine", "strength": 2.0}


def test_a_yaml_beside_a_plug_in_of_two_encodings_is_of_neither_part(mine):
    second = tiny.PLUGIN.replace("Mine", "Second").replace('"mine"', '"second"')
    mine.write_text(tiny.PLUGIN + second)
    with pytest.raises(UserError, match="strength"):
        resolve_encoding(EncodingSettings(name="sum", parts=["second"]), ["./mine.py"])


# --- Ways to name a file
@pytest.mark.parametrize(
    ("value", "file"),
    [
        ("./mine.py", "./mine.py"),
        ("mine.py", "mine.py"),
        ("mine.py:Mine", "mine.py"),
        ("'./mine.py:Mine'", "./mine.py"),
    ],
)
def test_a_file_is_an_encoding_and_its_plug_in(mine, value, file):
    assert composed(f"encoding={value}") == [({"name": "mine", "strength": 1.5}, [file])]


def test_a_file_is_named_by_its_whole_path_too(mine):
    assert composed(f"encoding={mine}") == [({"name": "mine", "strength": 1.5}, [str(mine)])]


def test_parameters_and_other_plug_ins_are_set_beside_a_file(mine):
    jobs = composed("encoding=./mine.py", "encoding.strength=2", "plugins=[other]")
    assert jobs == [({"name": "mine", "strength": 2}, ["other", "./mine.py"])]


def test_one_plug_in_may_stand_without_a_list(mine):
    jobs = composed("encoding=./mine.py", "plugins=other")
    assert jobs == [({"name": "mine", "strength": 1.5}, ["other", "./mine.py"])]


@pytest.fixture
def experiment(working_folder):
    """Return the arguments that choose an experiment with a plug-in of its own."""
    (working_folder / "yaml/experiment").mkdir(parents=True)
    text = "# @package _global_\nexperiment_name: own\nplugins: [other]\n"
    (working_folder / "yaml/experiment/own.yaml").write_text(text)
    return ["--config-dir", "yaml", "experiment=own"]


def test_the_plug_ins_of_an_experiment_stay(mine, experiment):
    jobs = composed(*experiment, "encoding=./mine.py")
    assert jobs == [({"name": "mine", "strength": 1.5}, ["other", "./mine.py"])]


def test_cfg_prints_the_plug_ins_of_the_experiment_and_the_file(mine, experiment, posenc):
    printed = posenc("train", *experiment, "encoding=./mine.py", "--cfg", "job").out
    assert "plugins:\n- other\n- ./mine.py\n" in printed


def test_a_file_is_a_value_of_a_sweep(mine):
    jobs = composed("-m", "encoding=rope,./mine.py:Mine", "seed=0,1")
    names = [(encoding["name"], plugins) for encoding, plugins in jobs]
    assert names == [("rope", []), ("rope", []), ("mine", ["./mine.py"]), ("mine", ["./mine.py"])]


def test_parameters_in_a_file_need_no_star(mine):
    mine.write_text(tiny.PLUGIN.replace("*, strength", "strength"))
    ((encoding, _),) = composed("encoding=./mine.py", "encoding.strength=2")
    assert encoding == {"name": "mine", "strength": 2}


# --- Files that are refused
TASK = "from posenc.data.tasks.base import Task\n\n\nclass Mine(Task):\n    name = 'mine_too'\n"
TWICE = tiny.PLUGIN + "\n\nclass Copied(Mine):\n    name = 'mine'\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"mine.py": TASK}, "defines no encoding"),
        ({"mine.py": tiny.PLUGIN, "mine.yaml": "[1, 2]"}, "mine.yaml holds no settings"),
        ({"mine.py": TWICE}, "both have the name mine"),
    ],
)
def test_a_file_without_one_encoding_to_choose_is_refused(working_folder, files, message):
    for name, text in files.items():
        (working_folder / name).write_text(text)
    with pytest.raises(UserError) as caught:
        composed("encoding=./mine.py")
    assert message in caught.value.text()


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoding": "./mina.py"}, r"encoding=./mina.py: there is no such file"),
        ({"encoding": "./mine.py:Min"}, r"(?s)has no such encoding.*did you mean: .*Mine"),
        ({"encoding": "./mine.py", "encoding.strenght": "1"}, r"did you mean: encoding.strength"),
    ],
    ids=["no file", "no class", "no parameter"],
)
def test_a_wrong_name_is_refused_with_the_nearest(settings, message):
    with pytest.raises(px.UserError, match=message):
        px.train(**settings)


TWO_ENCODINGS = tiny.PLUGIN + tiny.PLUGIN.replace("Mine", "Other").replace('"mine"', '"two"')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(TWO_ENCODINGS, r"(?s)several encodings.*file.py:Mine", id="several"),
        pytest.param("x = 1\n", r"defines no encoding", id="none"),
        pytest.param("def\n", r"cannot be imported \(SyntaxError", id="broken"),
    ],
)
def test_a_file_without_one_encoding_is_refused(working_folder, text, message):
    (working_folder / "file.py").write_text(text)
    with pytest.raises(px.UserError, match=message):
        px.train(encoding="./file.py")


# --- A run that was trained with a file
@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory, corpus, shared_cache):
    """A working folder with the file and the run that was trained with it; never changed."""
    folder = tmp_path_factory.mktemp("trained")
    write_encoding(folder)
    with working_in(folder, shared_cache):
        px.train(encoding="./mine.py", **tiny.keywords(corpus))
    return folder


@pytest.fixture
def run(trained_folder, working_folder):
    """A copy of that run, read with its file."""
    shutil.copytree(trained_folder, working_folder, dirs_exist_ok=True)
    return px.load(only_run(working_folder / "runs"), plugins=["./mine.py"])


def test_a_file_is_trained(run):
    assert run.config["encoding"] == {"name": "mine", "strength": 1.5}
    assert run.nll(TEXT).shape == (8,)


def test_a_run_is_compared_without_its_file(run, working_folder):
    (working_folder / "mine.py").unlink()
    (table,) = run.runs().compare().tables
    assert [row.label for row in table.rows] == ["mine"]


def test_a_run_is_read_with_its_file_and_not_without(run):
    """Code of a run directory is executed for those alone who say that they trust it."""
    assert px.load(run.path, plugins=["./mine.py"]).nll(TEXT).tolist() == run.nll(TEXT).tolist()
    assert px.load(run.path, plugins="./mine.py").nll(TEXT).tolist() == run.nll(TEXT).tolist()
    with pytest.raises(px.UserError, match=r"(?s)no such encoding.*plugins=\[./mine.py\]: if you trust"):
        px.load(run.path).nll(TEXT)


def test_a_run_is_not_read_with_another_text_of_its_file(run, working_folder):
    (working_folder / "mine.py").write_text(tiny.PLUGIN.replace("log1p", "sqrt"))
    with pytest.raises(px.UserError, match="trained by other code"):
        px.load(run.path, plugins=["./mine.py"]).nll(TEXT)


LEAK = """from posenc.encodings.base import Encoding


class Leak(Encoding):
    name = "leak"
    acts_on = "bias"

    def embed(self, x, pos, layer):
        return x + x.roll(-1, dims=1)
"""
TOO_MANY_HEADS = """import torch
from posenc.encodings.base import Encoding


class Heads(Encoding):
    name = "heads"
    acts_on = "bias"

    def distance_bias(self, distance, layer):
        return torch.zeros(self.shape.n_heads + 1, len(distance))
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(LEAK, "encoding=leak: sees later tokens", id="the future"),
        pytest.param(TOO_MANY_HEADS, r"distance_bias returns the shape \(5, 32\)", id="shape of a bias"),
    ],
)
def test_an_encoding_that_cannot_be_measured_is_refused_before_its_training(working_folder, text, message):
    (working_folder / "file.py").write_text(text)
    with pytest.raises(px.UserError, match=message):
        px.train(encoding="./file.py")


WRONG_BIAS = LEAK.replace("embed(self, x, pos, layer)", "bias(self, q, k, q_pos, k_pos, layer)")
WITHOUT_LAYER = LEAK.replace("embed(self, x, pos, layer)", "embed(self, x, pos)")
OTHER_NAMES = LEAK.replace("(self, x, pos, layer)", "(me, x, *others)").replace("x.roll(-1, dims=1)", "0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            WRONG_BIAS,
            r"(?s)its hook bias takes \(self, q, k, q_pos, k_pos, layer\)"
            r".*allowed: bias\(self, q_pos, k_pos, layer\).*belongs in `scores`",
            id="content in a bias",
        ),
        pytest.param(WITHOUT_LAYER, r"(?s)allowed: embed\(self, x, pos, layer\)", id="one too few"),
    ],
)
@pytest.mark.parametrize("command", ["train", "check"])
def test_a_hook_with_other_arguments_is_one_error(posenc, working_folder, text, message, command):
    (working_folder / "file.py").write_text(text)
    result = posenc(command, "encoding=./file.py")
    assert result.code == 2
    assert re.search(message, result.err)


def test_the_arguments_of_a_hook_may_have_other_names(working_folder):
    (working_folder / "file.py").write_text(OTHER_NAMES)
    build_encoding(
        "leak", d_model=8, n_heads=2, head_dim=4, n_layers=1, train_length=8, plugins=["./file.py"]
    )


DRAWS_NUMBERS = LEAK.replace("x + x.roll(-1, dims=1)", "x + torch.randn_like(x)").replace(
    "from posenc", "import torch\nfrom posenc", 1
)
ONLY_LARGE = LEAK.replace("x + x.roll(-1, dims=1)", "x * self.scale").replace(
    "    def embed",
    "    def __init__(self, shape):\n"
    "        super().__init__(shape)\n"
    "        self.scale = {64: 1.0}[shape.d_model]\n\n"
    "    def embed",
)


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        pytest.param(DRAWS_NUMBERS, [], id="random numbers"),
        pytest.param(ONLY_LARGE, ["model.d_model=64"], id="one size alone"),
    ],
)
def test_an_encoding_of_which_nothing_can_be_told_is_trained(working_folder, text, overrides):
    (working_folder / "file.py").write_text(text)
    job = compose_jobs("train", parse(["encoding=./file.py", *overrides])).jobs[0]
    check_foreign_encoding(check_parts(job.run_settings))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["encoding=./broken.py"], "encoding=./broken.py: cannot be imported"),
        (["data=task", "data.task=./broken.py"], "data.task=./broken.py: cannot be imported"),
        (["data=task", "data.task=./none.py"], "data.task=./none.py: there is no such file"),
        (["encoding=./broken"], "did you mean: encoding=./broken.py"),
    ],
)
def test_an_error_of_a_file_names_what_was_typed(working_folder, overrides, message):
    (working_folder / "broken.py").write_text("def\n")
    with pytest.raises(UserError) as caught:
        composed(*overrides)
    assert message in caught.value.text()
    assert "in job" not in caught.value.text()


def test_a_file_that_changed_is_read_again(mine):
    """In a notebook the next call has the new text."""
    settings = EncodingSettings(name="mine", strength=1.5)
    before = sources_of(settings, ["./mine.py"])
    mine.write_text(tiny.PLUGIN.replace("log1p", "sqrt"))
    assert sources_of(settings, ["./mine.py"]) != before


@pytest.mark.parametrize(
    ("statement", "is_noticed"),
    [
        pytest.param("from .helper import SCALE", True, id="relative"),
        pytest.param("from pack import helper", True, id="absolute"),
        pytest.param("import math", False, id="not imported"),
    ],
)
def test_an_edited_helper_of_a_plug_in_is_other_code(working_folder, monkeypatch, statement, is_noticed):
    plugin = tiny.PLUGIN.replace("import torch", f"{statement}\nimport torch", 1)
    tiny.write(working_folder / "pack", {"__init__.py": "", "helper.py": "SCALE = 1\n", "mine.py": plugin})
    monkeypatch.syspath_prepend(working_folder)
    for name in ("pack", "pack.mine", "pack.helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    settings = EncodingSettings(name="mine", strength=1.0)
    before = sources_of(settings, ["pack.mine"])
    (working_folder / "pack" / "helper.py").write_text("SCALE = 3.25\n")
    if is_noticed:
        # this process would go on with the old text, under the hash of the new one
        with pytest.raises(px.UserError, match="a file that it imports, has changed since"):
            sources_of(settings, ["pack.mine"])
        importlib.reload(sys.modules["pack.helper"])
        importlib.reload(sys.modules["pack.mine"])
        assert sources_of(settings, ["pack.mine"]) != before
    else:
        assert sources_of(settings, ["pack.mine"]) == before

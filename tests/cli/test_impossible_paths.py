"""Names that no file system takes, wherever a path or a choice is read: exit 2, one screen, no traceback."""

from pathlib import Path

import pytest

import posenc as library
from posenc.core.errors import UserError

LONG = "x" * 5000

COMMANDS = [
    "eval run={path}",
    "eval -m run={path},other",
    "show run={path}",
    "sample run={path}",
    "export run={path} --hf out",
    "export runs --out {path}.runs.jsonl.gz",
    "train train.init={path}",
    "train train.init={path}/checkpoints/step-1",
    "train tokenizer=hf tokenizer.path={path}",
    "train runs_dir={path}",
    "train runs_dir=new/{path}",
    "train plugins=[{path}.py]",
    "train encoding={path}.py",
    "train --config-dir {path}",
    "eval subject=hf context_length=64 subject.path={path}",
    "data info data=files data.paths={path}",
    "data info data=pg19 data.repository={path}",
    "compare {path}",
    "runs {path}",
    "show encoding=rope --out {path}.png",
    # choices, which Hydra asks the disk for
    "train encoding={path}",
    "train experiment={path}",
    "train hydra/launcher={path}",
    "show encoding={path}",
    "bench encoding={path}",
    "data info data={path}",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_is_too_long_is_refused(posenc, command):
    result = posenc(*[word.format(path=LONG) for word in command.split()])
    assert result.code == 2, result.err
    assert result.err.startswith("error: ")
    assert "fault of posenc" not in result.err
    assert len(result.err.splitlines()) <= 5
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("command", ["eval run=loop", "train train.init=loop", "train encoding=loop/a.py"])
def test_a_loop_of_links_is_named(posenc, command):
    Path("loop").symlink_to("loop")
    result = posenc(*command.split())
    assert result.code == 2, result.err
    assert "leads back to itself" in result.err


@pytest.mark.parametrize(
    "folder", [LONG, f"a/{LONG}", "loop", "loop/below"], ids=["long", "part", "loop", "below"]
)
def test_an_export_goes_to_a_folder_that_can_be_made(posenc, folder):
    Path("loop").symlink_to("loop")
    result = posenc("export", "run=any", "--hf", folder)
    assert result.code == 2, result.err
    assert "--hf" in result.err


@pytest.mark.parametrize("name", [LONG, "a\0b"], ids=["long", "NUL"])
def test_loading_an_impossible_name_raises_a_user_error(posenc, name):
    with pytest.raises(UserError, match="run="):
        library.load(name)

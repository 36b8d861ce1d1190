"""docs/add-an-encoding.md (a file, a clone, a package, loose) and add-an-extension.md, done literally."""

import inspect
import json
import re
import shutil

import pytest
import tiny

TEXT = (tiny.ROOT / "docs" / "add-an-encoding.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w.]+)`:\n```\w+\n(.*?)```", TEXT, re.S | re.M))  # text by name
NAME = "log_recency"
CODE = FILES[f"{NAME}.py"]
YAML = FILES[f"{NAME}.yaml"]
PROJECT = FILES["pyproject.toml"]
PAGE = (tiny.ROOT / "docs" / "add-an-extension.md").read_text(encoding="utf-8")
EXTENSION_HALF = PAGE.partition("\n## A protocol")[0]
EXTENSION = dict(re.findall(r"```(\w+)\n(.*?)```", EXTENSION_HALF, re.S))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def copied(clone):
    for tree in ("posenc", "conf"):
        shutil.copytree(tiny.ROOT / tree, clone / tree, ignore=shutil.ignore_patterns("__pycache__"))
    return clone


def in_one_file(working_folder):
    write(working_folder / "mine.py", FILES["mine.py"])
    return {}


def in_a_clone(working_folder):
    copied(working_folder / "clone")
    write(working_folder / "clone" / "posenc" / "encodings" / f"{NAME}.py", CODE)
    write(working_folder / "clone" / "conf" / "encoding" / f"{NAME}.yaml", YAML)
    return {"PYTHONPATH": str(working_folder / "clone")}


def in_a_package(working_folder):
    """What `pip install` leaves behind, without an installer: the package and its entry points."""
    site = working_folder / "site"
    write(site / "my_encodings" / "__init__.py", "")
    write(site / "my_encodings" / f"{NAME}.py", CODE)
    write(site / "my_encodings" / "conf" / "encoding" / f"{NAME}.yaml", YAML)
    info = site / "my_encodings-0.1.0.dist-info"
    write(info / "METADATA", "Metadata-Version: 2.1\nName: my-encodings\nVersion: 0.1.0\n")
    write(info / "top_level.txt", "my_encodings\n")
    points = re.findall(r'\[project\.entry-points\."([\w.]+)"\]\n(\w+) = "(.+)"', PROJECT)
    assert [group for group, _, _ in points] == ["posenc.encodings", "posenc.conf"]
    write(info / "entry_points.txt", "".join(f"[{group}]\n{key} = {value}\n" for group, key, value in points))
    return {"PYTHONPATH": f"{site}:{tiny.ROOT}"}


def loose(working_folder):
    write(working_folder / f"{NAME}.py", CODE)
    write(working_folder / "conf" / "encoding" / f"{NAME}.yaml", YAML)
    return {}


def arguments_of(hook):
    """Return the arguments of a hook of the base class, as the page writes them."""
    from posenc.encodings.base import Encoding

    return ", ".join(list(inspect.signature(getattr(Encoding, hook)).parameters)[1:])


def test_the_hooks_of_the_page_and_their_arguments_are_those_of_the_seam():
    from posenc.encodings.base import HOOKS

    (table,) = re.findall(r"\| hook \| arguments .*?\n\n", TEXT, re.S)
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.M)
    assert rows == [(hook, arguments_of(hook)) for hook in HOOKS]


@pytest.mark.slow
def test_two_files_make_an_extension(run_copy, working_folder, tmp_path):
    tree = copied(tmp_path / "tree")
    (tree / "posenc" / "evaluation" / "extensions" / "coarse.py").write_text(EXTENSION["python"])
    (tree / "conf" / "extend" / "coarse.yaml").write_text(EXTENSION["yaml"])
    arguments = [f"run={run_copy}", "extend=coarse", "eval.protocols=[fixed-target]"]
    result = tiny.spawn("eval", *arguments, cwd=working_folder, PYTHONPATH=str(tree))
    assert result.code == 0, result.err
    assert "rope+coarse" in result.out
    plain_losses = {}
    extended_losses = {}
    for record in json.loads((run_copy / "results.json").read_text())["records"]:
        if record["extend"]:
            assert record["extend"]["step"] == 4
            extended_losses[record["window"]] = record["nats"]
        elif record["protocol"] == "fixed-target":
            plain_losses[record["window"]] = record["nats"]
    assert extended_losses.keys() == {16, 32, 64}
    assert extended_losses[16] == plain_losses[16]  # within T nothing is changed
    assert extended_losses[64] != plain_losses[64]

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir
from posenc.data import list_corpora, read_documents
from posenc.data.sources import package, python_packages, stdlib


def conf(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load((conf_dir() / "data" / f"{name}.yaml").read_text())
    return settings


def test_sympy_is_the_corpus_it_is_said_to_be() -> None:
    documents = read_documents(conf("sympy"))
    size = sum(len(d.text) for d in documents)
    assert 780 <= len(documents) <= 900 and 15e6 < size < 18e6
    assert not [d.id for d in documents if "/tests/" in f"/{d.id}" or "_antlr/" in d.id]
    assert sum(len(d.text) > 8 * 128 for d in documents if d.split == "test") > 100
    assert {"core/add.py", "__init__.py"} <= {d.id for d in documents}


def test_reading_sympy_does_not_import_it() -> None:
    code = (
        "import sys; from posenc.data.sources.package import read\n"
        "assert read(package='sympy', exclude=['*/tests/*']); assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_is_read_as_bytes_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "trap" / "inner"
    (inner / "tests").mkdir(parents=True)
    (tmp_path / "trap" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (inner / "crlf.py").write_bytes("# é\r\n".encode())
    (inner / "latin.py").write_bytes(b"# \xe9\n")
    (inner / "empty.py").write_bytes(b"")
    (inner / "tests" / "test_a.py").write_text("1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    documents = package.read(package="trap", exclude=["*/tests/*"])
    assert [d.id for d in documents] == ["__init__.py", "inner/crlf.py"]
    assert documents[1].text == "# é\r\n".encode()


@pytest.mark.parametrize("name", ["no_such_package_here", "os.path", "", "a-b"])
def test_a_package_that_is_not_there(name: str) -> None:
    with pytest.raises(UserError) as caught:
        package.read(package=name, exclude=[])
    assert caught.value.key == "data.package"


def test_stdlib_leaves_out_what_differs_between_builds() -> None:
    ids = {d.id for d in stdlib.read(exclude=conf("stdlib")["exclude"])}
    assert {"argparse.py", "asyncio/tasks.py", "json/decoder.py"} <= ids
    parts = [set(i.split("/")) for i in ids]
    assert not [p for p in parts if p & {"site-packages", "test", "tests", "encodings", "__pycache__"}]
    assert not [i for i in ids if i.startswith("_sysconfigdata")]


def test_python_packages_keep_one_of_each_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    files = {
        "thing/b.py": "x = 1\n",
        "thing/a.py": "x = 1\n",
        "thing/tests/t.py": "y\n",
        "thing/d.txt": "no",
        "../bin/thing.py": "no",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    found = python_packages.read(exclude=["*/tests/*"])
    assert [(d.id, d.text) for d in found] == [("thing/a.py", b"x = 1\n")]


@pytest.mark.parametrize(
    ("change", "key", "near"),
    [
        ({"source": "packge"}, "data.source", "package"),
        ({"packge": "sympy"}, "data.packge", "data.package"),
        ({"package": 3}, "data.package", ""),
        ({"exclude": "*/tests/*"}, "data.exclude", "list"),
        ({"name": None}, "data.name", ""),
        ({"package": "???"}, "data.package", "must be given"),
        ({"split": {"validation": 0.1}}, "data.split.test", "missing"),
        ({"split": {"validation": 0.1, "test": 1.5}}, "data.split.test", "0 and 1"),
        ({"split": {"validation": 0.5, "test": 0.5}}, "data.split", "nothing to train"),
        ({"split": {"validation": 0.1, "tests": 0.5}}, "data.split.tests", "data.split.test"),
        ({"split": None}, "data.split", "missing"),
    ],
)
def test_wrong_settings_are_refused_by_key(change: dict[str, Any], key: str, near: str) -> None:
    with pytest.raises(UserError) as caught:
        read_documents({**conf("sympy"), **change})
    assert caught.value.key == key and near in str(caught.value)


def test_every_corpus_is_listed_with_a_description() -> None:
    rows = {row["name"]: row for row in list_corpora()}
    assert {"sympy", "stdlib", "python_packages", "files", "wikitext2", "wikitext103"} <= set(rows)
    assert all(row["description"] and row["source"] for row in rows.values())
    assert all(conf(name)["name"] == name for name in rows)

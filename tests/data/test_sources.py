"""Corpora without files of the user's: installed code, and data sets of the hub that are read whole."""

import socket
import time

import pytest
from corpora import BYTES, conf, documents_of
from tiny import write

from posenc.core.errors import RunError, UserError
from posenc.data import absolute_data, hub, prepare, read_facts
from posenc.data.documents import Notes, articles
from posenc.data.sources import read_package, read_python_packages


def test_sympy_is_the_corpus_it_is_said_to_be():
    data = conf("sympy")
    documents = documents_of(data)
    size = sum(len(d.text) for d in documents)
    assert 780 <= len(documents) <= 900 and 15e6 < size < 18e6
    assert not [d.id for d in documents if "/tests/" in f"/{d.id}" or "_antlr/" in d.id]
    assert {"core/add.py", "__init__.py"} <= {d.id for d in documents}
    store = prepare(data, BYTES)
    test = store.splits["test"]
    assert test.groups is not None and 30 <= test.groups.max() + 1 <= 50  # subpackages
    assert test.groups.tolist() == sorted(test.groups.tolist()) and sum(test.lengths > 8 * 128) > 100
    assert not read_facts(data).notes


def test_a_package_is_read_as_bytes_and_never_run(tmp_path, monkeypatch):
    texts = {"__init__.py": "raise SystemExit('imported')\n", "inner/crlf.py": "# é\r\n"}
    texts |= {"inner/latin.py": b"# \xe9\n", "inner/blank.py": "\n \n", "inner/tests/test_a.py": "1\n"}
    write(tmp_path / "trap", texts)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = conf("sympy", package="trap", exclude=["*/tests/*"])
    documents = documents_of(data)
    assert [d.id for d in documents] == ["__init__.py", "inner/crlf.py"]
    assert documents[1].text == "# é\r\n".encode()
    (note,) = read_facts(data).notes
    assert note.endswith("1 not UTF-8")
    for name in ("no_such_package_here", "os.path"):
        with pytest.raises(UserError) as caught:
            read_package(Notes(), package=name, exclude=[])
        assert caught.value.key == "data.package"


def test_python_packages_keep_one_of_each_text(tmp_path, monkeypatch):
    copy = {"thing/b.py": "x = 1\n", "thing/a.py": "x = 1\n"}
    write(tmp_path, {**copy, "thing/tests/t.py": "y\n", "d.txt": "no"})
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"purelib": str(tmp_path)})
    found = read_python_packages(Notes(), exclude=["*/tests/*"])
    assert [(d.id, d.text) for d in found] == [("thing/a.py", b"x = 1\n")]


ROWS = [
    "", " = First = \n", "", " Some text with 1 @,@ 000 . \n", "", " = = Section = = \n", "", " More . \n",
    " = not a title , inside a table = \n", "", " = = = Deeper = = = \n", "", " = Second : x = y = \n", "",
    " = Third = \n", "", " End . \n",
]  # fmt: skip


def test_wikitext_articles_are_put_together_at_titles():
    found = articles(ROWS)
    assert [text.strip().split("\n")[0].strip() for text in found] == ["= First =", "= Third ="]
    assert "= = Section = =" in found[0] and "inside a table" in found[0] and "Deeper" in found[0]
    assert found[1] == " = Third = \n\n End . \n"
    assert articles(["before\n", *ROWS])[0] == "before\n\n"


def test_lines_become_articles_and_a_folder_is_known_by_its_text(tmp_path, monkeypatch, repository):
    folder = repository(rows=dict.fromkeys(("train", "validation", "test"), ROWS))
    monkeypatch.chdir(tmp_path)
    data = conf("wikitext2", repository=folder.name, config=None)
    ids = [d.id for d in documents_of(data)]
    assert ids == [f"{split}/0000000{i}" for split in ("test", "train", "validation") for i in (0, 1)]
    facts = read_facts(data)
    assert facts.identity == {"name": "wikitext2", "fingerprint": facts.fingerprint}
    assert facts.notes == [
        f"also in the training split: 2 of 2 {split} documents" for split in ("validation", "test")
    ]
    assert absolute_data(data)["repository"] == str(folder)


def test_a_hub_out_of_reach_is_noticed_soon_and_said_in_two_lines(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub.reachable()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert not hub.reachable()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@127.0.0.1:9")
    started = time.monotonic()
    for name, what in (("wikitext2", "Salesforce/wikitext"), ("tinystories", "TinyStories")):
        with pytest.raises(RunError) as caught:
            read_facts(conf(name))
        first, second = caught.value.text().split("\n")
        assert what in first and "127.0.0.1:9" in first and "secret" not in first
        assert "data=files" in second and "posenc data prepare" in second
    assert time.monotonic() - started < 25


def test_stdlib_leaves_out_what_differs_between_builds():
    ids = {d.id for d in documents_of(conf("stdlib"))}
    assert {"argparse.py", "asyncio/tasks.py", "json/decoder.py"} <= ids
    left_out = {"site-packages", "test", "tests", "encodings", "__pycache__"}
    assert not [i for i in ids if left_out & set(i.split("/")) or i.startswith("_sysconfigdata")]

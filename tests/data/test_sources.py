"""Corpora of installed code, and data sets of the hub that are read whole."""

import pytest
from corpora import BYTES, conf, documents_of, files
from test_sections import ROWS
from tiny import write

from posenc.core.errors import UserError
from posenc.data import absolute_data, prepare, read_facts
from posenc.data.sources import asks_for_whole, is_measured_whole, is_of_the_user, measured_whole
from posenc.settings.tree import DataSettings

# --- SymPy


@pytest.fixture(scope="module")
def sympy():
    return documents_of(conf("sympy"))


def test_sympy_has_the_size_that_its_yaml_says(sympy):
    assert 780 <= len(sympy) <= 900
    assert 15e6 < sum(len(document.text) for document in sympy) < 18e6


def test_sympy_has_neither_tests_nor_generated_parsers(sympy):
    ids = {document.id for document in sympy}
    assert {"core/add.py", "__init__.py"} <= ids
    assert not [i for i in ids if "/tests/" in f"/{i}" or "_antlr/" in i]


def test_sympys_groups_are_its_subpackages():
    test = prepare(conf("sympy"), BYTES).splits["test"]
    assert test.groups is not None
    assert 30 <= test.groups.max() + 1 <= 50
    assert test.groups.tolist() == sorted(test.groups.tolist())


def test_sympy_has_enough_long_test_documents():
    assert sum(prepare(conf("sympy"), BYTES).splits["test"].lengths > 8 * 128) > 100


def test_nothing_of_sympy_is_left_out():
    assert not read_facts(conf("sympy")).notes


# --- Other packages


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Settings of a package that must not be imported."""
    contents = {
        "__init__.py": "raise SystemExit('imported')\n",
        "inner/crlf.py": "# é\r\n",
        "inner/latin.py": b"# \xe9\n",
        "inner/blank.py": "\n \n",
        "inner/tests/test_a.py": "1\n",
    }
    write(tmp_path / "trap", contents)
    monkeypatch.syspath_prepend(str(tmp_path))
    return conf("sympy", package="trap", exclude=["*/tests/*"])


def test_a_package_is_read_and_never_run(trap):
    assert [document.id for document in documents_of(trap)] == ["__init__.py", "inner/crlf.py"]


def test_a_package_is_read_as_bytes(trap):
    assert documents_of(trap)[1].text == "# é\r\n".encode()


def test_files_of_a_package_that_are_not_utf8_are_counted(trap):
    (note,) = read_facts(trap).notes
    assert note.endswith("1 not UTF-8")


@pytest.mark.parametrize("name", ["no_such_package_here", "os.path"])
def test_what_is_no_package_is_refused(name):
    with pytest.raises(UserError) as caught:
        documents_of(conf("sympy", package=name))
    assert caught.value.key == "data.package"


def test_python_packages_keep_one_of_each_text(tmp_path, monkeypatch):
    copies = {"thing/b.py": "x = 1\n", "thing/a.py": "x = 1\n"}
    write(tmp_path, {**copies, "thing/tests/t.py": "y\n", "d.txt": "no"})
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"purelib": str(tmp_path)})
    documents = documents_of(conf("python_packages", exclude=["*/tests/*"]))
    assert [(document.id, document.text) for document in documents] == [("thing/a.py", b"x = 1\n")]


def test_stdlib_leaves_out_what_differs_between_builds():
    ids = {document.id for document in documents_of(conf("stdlib"))}
    assert {"argparse.py", "asyncio/tasks.py", "json/decoder.py"} <= ids
    left_out = {"site-packages", "test", "tests", "encodings", "__pycache__"}
    assert not [i for i in ids if left_out & set(i.split("/")) or i.startswith("_sysconfigdata")]


# --- Files other than Python's, and docstrings

DOCUMENTED = """'''Module.'''


class C:
    '''Class.

        Indented.
    '''

    def method(self):
        r'''Method with \\d.'''


def function():
    'Function with \\d.'
"""


@pytest.fixture
def mixed_package(tmp_path, monkeypatch):
    """Install a package `mixed` of Python and C++."""
    contents = {
        "__init__.py": "",
        "include/a.h": "int a;\n",
        "include/other/b.h": "int b;\n",
        "docs.py": DOCUMENTED,
        "bare.py": "x = 1\n",
        "broken.py": "def (:\n",
    }
    write(tmp_path / "mixed", contents)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("mixed_package")
def test_patterns_include_files_of_any_kind():
    data = conf("sympy", package="mixed", include=["/include/*"], exclude=["*/other/*"])
    assert [document.id for document in documents_of(data)] == ["include/a.h"]


@pytest.mark.usefixtures("mixed_package")
def test_settings_of_older_runs_include_python_files():
    values = conf("sympy", package="mixed").parameters
    older = {key: value for key, value in values.items() if key != "include"}
    data = DataSettings.model_validate({"name": "sympy", **older})
    assert [document.id for document in documents_of(data)] == ["bare.py", "broken.py", "docs.py"]


@pytest.mark.usefixtures("mixed_package")
def test_docstrings_are_in_the_order_of_their_lines():
    (document,) = documents_of(conf("scipy_docs", package="mixed"))
    expected = "Module.\n\nClass.\n\nIndented.\n\nMethod with \\d.\n\nFunction with \\d.\n"
    assert (document.id, document.text.decode()) == ("docs.py", expected)


@pytest.mark.usefixtures("mixed_package")
@pytest.mark.filterwarnings("error")
def test_what_python_warns_of_in_foreign_code_is_not_shown():
    assert documents_of(conf("scipy_docs", package="mixed"))


@pytest.mark.usefixtures("mixed_package")
def test_files_that_are_not_python_have_no_docstrings_and_are_counted():
    (note,) = read_facts(conf("scipy_docs", package="mixed")).notes
    assert note == "not read: 1 not Python"


@pytest.mark.slow
def test_scipys_docstrings_have_the_size_that_their_yaml_says():
    documents = documents_of(conf("scipy_docs"))
    assert 4e6 < sum(len(document.text) for document in documents) < 6e6


def test_cpp_headers_are_pytorchs_own_and_written_by_hand():
    documents = documents_of(conf("cpp_headers"))
    ids = {document.id for document in documents}
    assert {"include/c10/core/TensorImpl.h", "include/ATen/core/ivalue.h"} <= ids
    assert not [i for i in ids if "/pybind11/" in i or "/ATen/ops/" in i or "generated" in i]
    assert 10e6 < sum(len(document.text) for document in documents) < 16e6


# --- Data sets that are read whole


@pytest.fixture
def wikitext(tmp_path, monkeypatch, repository):
    """Settings of a data set of lines in a local folder, named by a relative path."""
    folder = repository(rows=dict.fromkeys(("train", "validation", "test"), ROWS))
    monkeypatch.chdir(tmp_path)
    return conf("wikitext2", repository=folder.name, config=None)


def test_lines_become_numbered_articles(wikitext):
    expected = [f"{split}/0000000{i}" for split in ("test", "train", "validation") for i in (0, 1)]
    assert [document.id for document in documents_of(wikitext)] == expected


def test_a_local_folder_is_known_by_its_text(wikitext):
    facts = read_facts(wikitext)
    assert facts.identity == {"name": "wikitext2", "fingerprint": facts.fingerprint}


def test_copies_of_training_documents_are_noted(wikitext):
    assert read_facts(wikitext).notes == [
        "also in the training split: 2 of 2 validation documents",
        "also in the training split: 2 of 2 test documents",
    ]


def test_a_local_folder_is_made_absolute(wikitext, tmp_path):
    assert absolute_data(wikitext).parameters["repository"] == str(tmp_path / "repository")


@pytest.mark.parametrize("rows", ["documents", "wikitext_lines"])
def test_blank_rows_that_are_documents_are_counted(repository, rows):
    """A blank line of WikiText is a part of its article."""
    texts = ["first", "  ", None, "second", ""]
    folder = repository(rows=dict.fromkeys(("train", "validation", "test"), texts))
    data = conf("wikitext2", repository=str(folder), config=None, rows=rows)
    has_count = any("not read: 9 empty" in note for note in read_facts(data).notes)
    assert has_count == (rows == "documents")
    if rows == "documents":
        numbers = [document.id for document in documents_of(data) if document.split == "test"]
        assert numbers == ["test/00000000", "test/00000001"]


def test_a_data_set_without_a_test_split_is_named_with_its_splits(repository):
    folder = repository(rows={"train": ROWS, "validation": ROWS})
    with pytest.raises(UserError) as caught:
        documents_of(conf("wikitext2", repository=str(folder), config=None))
    assert caught.value.key == "data.repository"
    assert caught.value.value == str(folder)
    assert caught.value.problem == "has no test split, but train, validation"
    assert caught.value.allowed == "a data set with the splits train, validation, test"
    assert "data=hf" in caught.value.hint


# --- Texts that are only measured


def test_all_of_a_text_may_be_asked_for_with_1(tmp_path):
    data = files(tmp_path).with_changes(split={"validation": 0.2, "test": 1})
    assert asks_for_whole(data)
    assert is_measured_whole(measured_whole(data))


def test_true_does_not_ask_for_all_of_a_text(tmp_path):
    data = files(tmp_path).with_changes(split={"validation": 0.2, "test": True})
    assert not asks_for_whole(data)


@pytest.mark.parametrize(("name", "is_own"), [("files", True), ("sympy", False), ("wikitext2", False)])
def test_a_text_is_the_users_by_its_source_and_not_by_its_name(name, is_own):
    assert is_of_the_user(conf(name).with_changes(name="mine")) == is_own


def test_false_and_true_are_no_shares(tmp_path):
    write(tmp_path, {"a.txt": "text"})
    data = files(tmp_path).with_changes(split={"validation": False, "test": True})
    with pytest.raises(UserError, match=r"data\.split.*cannot be used"):
        documents_of(data)

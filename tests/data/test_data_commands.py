"""`posenc data list|info|prepare` as a user calls them."""

import json

import pytest
from corpora import conf, documents_of
from fake_runs import only_run, read_json
from tiny import TINY, write

from posenc.core.paths import choice_files, conf_dir
from posenc.data import catalogue, hub_texts


# --- posenc data list
@pytest.fixture
def listed(posenc, cache):
    """The rows of the list by the names of the corpora."""
    rows = json.loads(posenc("data", "list", "--json").out)
    return {row["name"]: row for row in rows}


def test_the_list_has_every_corpus(listed):
    assert set(listed) == {path.stem for path in (conf_dir() / "data").glob("*.yaml")}


def test_the_list_says_which_corpus_needs_a_network(listed):
    assert listed["wikitext2"]["network"]
    assert not listed["sympy"]["network"]


def test_the_list_has_licence_size_and_state_of_every_corpus(listed):
    for row in listed.values():
        assert row["licence"]
        assert row["size"]
        assert not row["cached"]


@pytest.mark.parametrize(
    "text",
    ["- a list", "source: [", "name: 7", "name: mine\nsource: stream\nrows: 7"],
    ids=["list", "no yaml", "no text for a name", "wrong parameters"],
)
def test_a_broken_yaml_of_a_package_hides_no_other_corpus(posenc, cache, monkeypatch, tmp_path, text):
    broken = tmp_path / "mine.yaml"
    broken.write_text(text)
    files = choice_files("data") | {"mine": broken}
    monkeypatch.setattr(catalogue, "choice_files", lambda group: files)
    result = posenc("data", "list")
    assert result.code == 0
    assert "sympy" in result.out
    assert "left out: error: data=mine: " in result.err


def test_the_list_as_text_fits_a_terminal_and_makes_no_cache(posenc, cache, listed):
    result = posenc("data", "list")
    assert result.code == 0
    assert result.err == ""
    for line in result.out.splitlines():
        assert len(line) <= 80 or str(cache) in line
    for name in listed:
        assert f"\n{name} " in result.out
    assert not cache.exists()


# --- posenc data info
@pytest.fixture
def documents(tmp_path):
    """Documents of 64 to 5 182 bytes in a folder, beside a file of another kind."""
    texts = {f"{i}.txt": f"{i:02d}" + "x" * (64 * i + 62) for i in range(80)}
    folder = write(tmp_path / "with space" / "ü", {**texts, "notes.pdf": "x"})
    return folder, documents_of(conf("files", paths=str(folder)))


@pytest.fixture
def info(posenc, documents):
    """Return a function that calls `posenc data info` on them."""
    folder, _ = documents
    arguments = ("data", "info", "data=files", f"data.paths={folder}", "context_length=100")
    return lambda *options: posenc(*arguments, *options)


@pytest.fixture
def facts(info):
    return json.loads(info("--json").out)


def sizes_of(documents, split):
    return [len(document.text) for document in documents if document.split == split]


def test_info_counts_documents_and_bytes_of_each_split(documents, facts):
    for name, split in facts["splits"].items():
        sizes = sizes_of(documents[1], name)
        assert split["documents"] == len(sizes)
        assert split["bytes"] == sum(sizes)


def test_info_counts_the_test_documents_that_are_longer_than_a_window(documents, facts):
    sizes = sizes_of(documents[1], "test")
    for row in facts["lengths"]:
        length = row["context_length"]
        assert row["test_documents"] == sum(size > length for size in sizes)
        assert row["test_documents_8x"] == sum(size > 8 * length for size in sizes)


def test_info_as_text_fits_a_terminal(info):
    result = info()
    assert result.code == 0
    assert result.err == ""
    assert max(len(line) for line in result.out.splitlines()) <= 80


def test_info_as_text_has_the_fingerprint_and_the_notes(info, facts):
    text = info().out
    assert facts["fingerprint"] in text
    assert facts["notes"][0] == "not read: 1 .pdf"
    for note in facts["notes"]:
        assert note in text


def test_info_makes_no_tokens(info, cache):
    info()
    assert not (cache / "tokens").exists()


# --- Groups, such as the files of one folder
@pytest.fixture
def notes_of_authors(posenc, working_folder):
    """Return a function that gives the notes of `posenc data info` on 400 texts of so many authors."""

    def notes(authors):
        texts = {f"author{i % authors:02}/{i:03}.txt": f"{i} of a text with words in it." for i in range(400)}
        write(working_folder / "texts", texts)
        result = posenc("data", "info", "data=files", "data.paths=texts", "context_length=2", "--json")
        assert result.code == 0, result.err
        return " ".join(json.loads(result.out)["notes"])

    return notes


def test_info_says_where_groups_are_too_few_for_an_interval(notes_of_authors):
    notes = notes_of_authors(6)
    assert "the test documents longer than 16 bytes are of 6 groups (folders, books), fewer than 20" in notes
    assert "too narrow" in notes


@pytest.mark.parametrize("authors", [25, 400])
def test_info_says_nothing_of_groups_that_are_enough_or_of_one_text_each(notes_of_authors, authors):
    assert "group" not in notes_of_authors(authors)


def test_groups_are_in_the_records(posenc, working_folder):
    texts = {f"author{i % 6}/{i:02d}.txt": f"{i} of a text with words in it.\n" * (i + 30) for i in range(60)}
    write(working_folder / "texts", texts)
    result = posenc("train", "encoding=nope", *TINY, "data.paths=texts")
    assert result.code == 0, result.err
    documents = documents_of(conf("files", paths=str(working_folder / "texts")))
    author_of_test = [document.id.split("/")[0] for document in documents if document.split == "test"]
    authors = list(dict.fromkeys(author_of_test))
    records = read_json(only_run(working_folder / "runs") / "results.json")["records"]
    assert {record["protocol"] for record in records} >= {"fixed-target", "trigram", "positions"}
    for record in records:
        sums = record["per_document"]
        assert sums["group"] == [authors.index(author_of_test[i]) for i in sums["document"]]


# --- posenc data prepare: a pinned corpus
PINNED = ("data=wikitext2", "data.rows=documents", "tokenizer=bpe", "tokenizer.vocab_size=260")


@pytest.fixture
def prepared(posenc, repository, pinned):
    """The result of the preparation."""
    rows = {"train": ["word " * 400] * 6, "validation": ["held " * 400] * 2, "test": ["test " * 400] * 4}
    pinned(repository(rows=rows))
    return posenc("data", "prepare", *PINNED)


def test_prepare_says_what_it_made_and_where(prepared, cache):
    assert prepared.code == 0, prepared.err
    assert "260" not in prepared.out
    assert str(cache) in prepared.err
    assert "tokens of bpe" in prepared.err
    assert "tokens of bytes" in prepared.err


def test_after_prepare_nobody_opens_the_source(posenc, prepared, working_folder, monkeypatch):
    """Not for training, not for measuring and not for the trigram."""
    monkeypatch.setattr(hub_texts, "load", None)  # whoever opens the source fails
    small = ("experiment=smoke", "train.tokens=2048", "context_length=16", "eval.lengths=[1x,2x]")
    result = posenc("train", *PINNED, *small)
    assert result.code == 0, result.err
    (results,) = working_folder.glob("runs/*/*/results.json")
    assert "trigram" in {record["protocol"] for record in read_json(results)["records"]}

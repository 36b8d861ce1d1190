"""The user's own text: files, folders, globs and lists; separators; copies."""

import gzip
import json
import shutil

import pytest
from corpora import conf, documents_of, files, texts_of
from tiny import write

from posenc.core.errors import UserError
from posenc.data import read_facts
from posenc.data.documents import SPLITS
from posenc.data.sources import files as files_source

# --- Folders


@pytest.fixture
def folder(tmp_path):
    """A folder with all kinds of files."""
    rows = [{"text": "first"}, {"text": ""}, {"text": "🙂", "id": 4}]
    contents = {
        ".hidden/h.txt": "no",
        "a.txt": b"\xef\xbb\xbfwith mark\r\n",
        "empty.txt": "",
        "blank.txt": " \n\t",
        "picture.png": b"\x89PNG",
        "README": "no",
        "x.PDF": "a",
        "y.pdf": "b",
        "latin.txt": b"caf\xe9",
        "utf16.txt": "wide".encode("utf-16-le"),
        "more.md": "read too",
        "c.jsonl": "\r\n\r\n".join(map(json.dumps, rows)),
        "deep/er/b.txt.gz": gzip.compress("zwö".encode()),
        "d.jsonl.gz": gzip.compress(b'{"text": "packed"}\n'),
    }
    return write(tmp_path / "all", contents)


def test_a_folder_is_read_by_the_suffixes_of_text(folder):
    assert texts_of(folder) == {
        "a.txt": b"with mark\r\n",
        "c.jsonl:00000001": b"first",
        "c.jsonl:00000005": "🙂".encode(),
        "d.jsonl.gz:00000001": b"packed",
        "deep/er/b.txt.gz": "zwö".encode(),
        "more.md": b"read too",
    }


def test_what_is_not_read_is_counted(folder):
    (note,) = read_facts(files(folder)).notes
    by_suffix = "3 empty, 2 .pdf, 1 .png"
    by_content = "1 UTF-16LE (utf16.txt), 1 not UTF-8 (latin.txt)"
    assert note == f"not read: {by_suffix}, {by_content}, 1 without ending"


def test_links_to_folders_and_what_is_no_file_are_counted(tmp_path):
    folder = write(tmp_path / "all", {"a.txt": "read"})
    (folder / "linked").symlink_to(write(tmp_path / "other", {"b.txt": "not read"}))
    (folder / "nowhere.txt").symlink_to(tmp_path / "gone.txt")
    assert "not read: 1 linked folder, 1 not a file" in read_facts(files(folder)).notes


def test_a_link_that_leads_nowhere_is_refused_also_with_brackets_in_its_name(tmp_path):
    link = tmp_path / "book[1].txt"
    link.symlink_to(tmp_path / "gone.txt")
    with pytest.raises(UserError, match=r"data\.paths"):
        texts_of(link)


@pytest.mark.parametrize("pattern", ["**", "**/*"])
def test_what_a_glob_finds_twice_is_read_and_not_counted_as_left_out(tmp_path, pattern):
    """`**` fits the folders, too, and of a folder a .py is not read."""
    write(tmp_path / "all", {"deep/er/a.py": "x", "deep/b.png": b"\x89", "c.txt": "y"})
    facts = read_facts(files(f"{tmp_path}/all/{pattern}"))
    (note,) = facts.notes
    assert "py" not in note
    assert "1 not UTF-8" in note or "1 .png" in note
    assert sum(map(len, facts.sizes.values())) == 2


def test_a_folder_that_moves_is_the_same_corpus(folder, tmp_path):
    before = read_facts(files(folder))
    shutil.move(folder, tmp_path / "renamed")
    after = read_facts(files(tmp_path / "renamed"))
    assert after.fingerprint == before.fingerprint
    assert after.sizes == before.sizes


# --- Paths


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Files below the user's home, in folders with brackets and umlauts."""
    names = ("x/one.md", "x/y/two.md", "z/one.rst", "z/three.txt", "p[1]/t/a.txt", "p[1]/t/b.txt", "ä/é.md")
    monkeypatch.setenv("HOME", str(tmp_path))
    return write(tmp_path, dict.fromkeys(names, "text"))


def test_a_list_has_each_file_once(tree):
    paths = [tree / "x" / "one.md", tree / "z", tree / "z" / "three.txt"]
    assert set(texts_of(paths)) == {"x/one.md", "z/three.txt"}


def test_a_glob_reaches_into_folders(tree):
    assert set(texts_of("~/x/**/*.md")) == {"one.md", "y/two.md"}


def test_ids_are_below_what_all_paths_share(tree):
    assert set(texts_of(["~/x/one.md", "~/ä"])) == {"x/one.md", "ä/é.md"}


def test_a_glob_works_below_a_folder_with_brackets(tree, monkeypatch):
    monkeypatch.chdir(tree / "p[1]")
    assert set(texts_of("t/*.txt")) == {"a.txt", "b.txt"}


def test_an_absolute_glob_works_through_a_folder_with_brackets(tree):
    assert set(texts_of(tree / "p[1]" / "t" / "*.txt")) == {"a.txt", "b.txt"}


@pytest.mark.parametrize(
    ("name", "content", "asked", "message"),
    [
        ("book.txt", "text", "bok.txt", "did you mean: .*book.txt"),
        ("empty.txt", "", "empty.txt", "no text"),
        ("latin.md", b"caf\xe9", "latin.md", r"not read: 1 not UTF-8 \(latin.md\)\n.*iconv -f LATIN1"),
        ("cut.txt.gz", gzip.compress(b"cut off" * 50, mtime=0)[:-12], "cut.txt.gz", "gzip"),
        ("no.jsonl", "{not json", "no.jsonl", "no.jsonl:1"),
        ("key.jsonl", '{"txt": "a"}', "key.jsonl", "(?s)data.text_field.*did you mean: txt"),
        ("a\x1b[2Jb.md", b"\xff", "a\x1b[2Jb.md", r"\\x1b"),
    ],
    ids=["nearest", "empty", "latin", "gzip", "json", "field", "escape"],
)
def test_a_path_that_does_not_work_says_why(tmp_path, monkeypatch, name, content, asked, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {name: content})
    with pytest.raises(UserError, match=message) as caught:
        documents_of(conf("files", paths=asked))
    assert str(caught.value.key).startswith("data.")
    assert "\x1b" not in str(caught.value)


# --- Separators

PARTS = [f"part {i} naïve\n\nmore of it\n" for i in range(40)]


@pytest.fixture
def separated(tmp_path):
    """Three files: one with separators, one without, one with a tab."""
    three = "".join(f"{part}\n<|end|>\n" for part in PARTS[:3])
    return write(tmp_path, {"a.txt": three, "b.txt": "one", "c.txt": "x\ty\n"})


def test_a_separator_cuts_every_file(separated):
    ids = list(texts_of(separated, separator="<|end|>"))
    assert ids == ["a.txt/00000001", "a.txt/00000002", "a.txt/00000003", "b.txt", "c.txt"]


def test_a_separator_is_noted(separated):
    notes = read_facts(files(separated, separator="<|end|>")).notes
    assert notes == ["cut at data.separator: 3 documents"]


def test_rows_of_a_table_are_not_counted_as_cut(separated):
    write(separated, {"d.jsonl": '{"text": "a <|end|> b"}\n{"text": "c"}'})
    facts = read_facts(files(separated, separator="<|end|>"))
    assert facts.notes == ["cut at data.separator: 3 documents"]
    assert sum(map(len, facts.sizes.values())) == 7


def test_a_separator_is_taken_as_typed_in_a_shell(separated):
    assert list(texts_of(separated / "c.txt", separator=r"\t").values()) == [b"x", b"y\n"]


@pytest.mark.parametrize("separator", [r"\r\n\r\n", "\r\n\r\n"])
def test_a_separator_may_have_line_ends_of_windows(tmp_path, separator):
    write(tmp_path, {"w.txt": "a\r\nb\r\n\r\nc\r\n"})
    assert list(texts_of(tmp_path / "w.txt", separator=separator).values()) == [b"a\r\nb", b"c\r\n"]


def test_a_backslash_and_an_r_that_begin_a_word_stay(tmp_path):
    write(tmp_path, {"a.tex": r"a\rule b\rule c"})
    assert list(texts_of(tmp_path / "a.tex", separator=r"\rule").values()) == [b"a", b" b", b" c"]


def test_a_separator_that_is_there_with_other_line_ends_says_so(tmp_path):
    write(tmp_path, {"w.txt": "a\r\n\r\nb"})
    with pytest.raises(UserError, match="does not occur in the text") as caught:
        texts_of(tmp_path / "w.txt", separator=r"\n\n")
    assert caught.value.hint == r"w.txt has lines that end in \r\n: data.separator='\r\n\r\n'"


def test_a_separator_is_not_looked_for_in_tables(separated):
    write(separated, {"d.jsonl": '{"text": "a <|row|> b"}'})
    with pytest.raises(UserError, match=r"data\.separator.*does not occur"):
        texts_of(separated, separator="<|row|>")


def test_a_separator_is_refused_where_all_files_are_tables(tmp_path):
    write(tmp_path, {"d.jsonl": '{"text": "a <|end|> b"}'})
    with pytest.raises(UserError, match=r"data\.separator.*only tables") as caught:
        texts_of(tmp_path, separator="<|end|>")
    assert "data.separator=null" in caught.value.hint


@pytest.mark.parametrize("separator", ["<|no|>", ""])
def test_a_separator_that_cuts_nothing_is_refused(separated, separator):
    with pytest.raises(UserError, match=r"data\.separator"):
        texts_of(separated, separator=separator)


# --- Copies


@pytest.fixture
def splits_with_copies(tmp_path):
    """The splits of 40 documents alone, then those of the same with a copy of each."""
    write(tmp_path, {f"{i:02d}.txt": PARTS[i] for i in range(40)})
    alone = {document.id: document.split for document in documents_of(files(tmp_path))}
    write(tmp_path, {f"copy/{i:02d}.txt": PARTS[i] for i in range(40)})
    together = {document.id: document.split for document in documents_of(files(tmp_path))}
    assert set(alone.values()) == set(SPLITS)
    assert len(together) == 80
    return alone, together


def test_a_copy_moves_no_document(splits_with_copies):
    alone, together = splits_with_copies
    assert {name: together[name] for name in alone} == alone


def test_a_copy_goes_to_the_split_of_the_first_one(splits_with_copies):
    alone, together = splits_with_copies
    assert {name: together[f"copy/{name}"] for name in alone} == alone


def test_copies_that_moved_are_noted(splits_with_copies, tmp_path):
    (note,) = read_facts(files(tmp_path)).notes
    assert "documents moved to the split of the first copy" in note


def test_a_file_that_memory_has_no_room_for_is_named(tmp_path, monkeypatch):
    """A gzip file of a few bytes may hold more than the machine."""
    write(tmp_path / "all", {"a.txt": "text", "bomb.txt.gz": gzip.compress(b"a" * 10_000)})
    monkeypatch.setattr(files_source, "PIECE_BYTES", 1000)
    monkeypatch.setattr(files_source, "free_memory", lambda: 4000)
    with pytest.raises(UserError, match=r"bomb\.txt\.gz: memory has no room"):
        read_facts(files(tmp_path / "all"))

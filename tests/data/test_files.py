"""The user's own text: files, folders, globs and lists; one file as a corpus; copies; groups."""

import gzip
import json
import shutil

import pytest
from corpora import conf, documents_of, files
from tiny import write

from posenc.core.errors import UserError
from posenc.data import read_facts
from posenc.data.documents import CHUNKS, LEAST_CHUNK, SPLITS, sections


def read(paths, **changes):
    return {d.id: d.text for d in documents_of(files(paths, **changes))}


def test_a_folder_is_read_and_what_is_not_read_is_counted(tmp_path):
    rows = [{"text": "first"}, {"text": ""}, {"text": "🙂", "id": 4}]
    root = write(
        tmp_path / "all",
        {
            ".hidden/h.txt": "no", "a.txt": b"\xef\xbb\xbfwith mark\r\n", "empty.txt": "",
            "blank.txt": " \n\t", "picture.png": b"\x89PNG", "README": "no", "x.PDF": "a", "y.pdf": "b",
            "latin.txt": b"caf\xe9",
            "utf16.txt": "wide".encode("utf-16-le"), "more.md": "read too",
            "c.jsonl": "\r\n\r\n".join(map(json.dumps, rows)),
            "deep/er/b.txt.gz": gzip.compress("zwö".encode()),
            "d.jsonl.gz": gzip.compress(b'{"text": "packed"}\n'),
        },
    )  # fmt: skip
    assert read(root) == {
        "a.txt": b"with mark\r\n",
        "c.jsonl:00000001": b"first",
        "c.jsonl:00000005": "🙂".encode(),
        "d.jsonl.gz:00000001": b"packed",
        "deep/er/b.txt.gz": "zwö".encode(),
        "more.md": b"read too",
    }
    before = read_facts(files(root))
    (note,) = before.notes
    assert note == "not read: 3 empty, 2 .pdf, 2 not UTF-8, 1 .png, 1 without ending"
    shutil.move(root, tmp_path / "renamed")
    after = read_facts(files(tmp_path / "renamed"))
    assert after.fingerprint == before.fingerprint and after.sizes == before.sizes


def test_files_globs_and_lists(tmp_path, monkeypatch):
    names = ("x/one.md", "x/y/two.md", "z/one.rst", "z/three.txt", "p[1]/t/a.txt", "p[1]/t/b.txt", "ä/é.md")
    write(tmp_path, dict.fromkeys(names, "text"))
    both = [tmp_path / "x" / "one.md", tmp_path / "z"]
    assert set(read([*both, tmp_path / "z" / "three.txt"])) == {"x/one.md", "z/three.txt"}  # once each
    monkeypatch.setenv("HOME", str(tmp_path))
    assert set(read("~/x/**/*.md")) == {"one.md", "y/two.md"}
    assert set(read(["~/x/one.md", "~/ä"])) == {"x/one.md", "ä/é.md"}
    monkeypatch.chdir(tmp_path / "p[1]")  # a folder above with brackets, and the absolute path of a run
    assert set(read("t/*.txt")) == set(read(tmp_path / "p[1]" / "t" / "*.txt")) == {"a.txt", "b.txt"}


SAID = {
    "bok.txt": "did you mean: .*book.txt",
    "empty.txt": "no text",
    "latin.md": "not read: 1 not UTF-8\n.*iconv -f LATIN1",
    "cut.txt.gz": "gzip",
    "no.jsonl": "no.jsonl:1",
    "key.jsonl": "(?s)data.text_field.*did you mean: txt",
    "a\x1b[2Jb.md": r"\\x1b",
}


def test_paths_that_do_not_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contents = {"book.txt": "text", "empty.txt": "", "latin.md": b"caf\xe9", "a\x1b[2Jb.md": b"\xff"}
    contents |= {"no.jsonl": "{not json", "key.jsonl": '{"txt": "a"}'}
    write(tmp_path, {**contents, "cut.txt.gz": gzip.compress(b"cut off" * 50)[:-12]})
    for paths, says in SAID.items():
        with pytest.raises(UserError, match=says) as caught:
            documents_of(conf("files", paths=paths))
        assert str(caught.value.key).startswith("data.") and "\x1b" not in str(caught.value)


PARTS = [f"part {i} naïve\n\nmore of it\n" for i in range(40)]
WIKI = "".join(f" = Title {i} = \n\n{part}\n" for i, part in enumerate(PARTS))

MARKDOWN = "before\n" + "".join(
    f"# Part {i}\n\n## Chapter {i}.0\ntext\n\n## Chapter {i}.1\n```\n# comment\n```\n" for i in range(20)
)


@pytest.mark.parametrize(
    ("name", "text", "count", "first", "how"),
    [
        ("a.md", MARKDOWN, 41, "before", "cut at its headings (##)"),
        ("wiki.raw", WIKI, 40, " = Title 0 = ", "cut at ' = Title = ' lines"),
        ("code.txt", "".join(f"# comment {i:04d}\n" for i in range(1600)), 6, "# comment", "cut in chunks"),
    ],
)  # fmt: skip
def test_a_single_file_is_cut_into_documents(tmp_path, name, text, count, first, how):
    write(tmp_path, {name: text, "other.xyz": "x"})
    found = read(tmp_path / name)
    assert list(found) == [f"{name}/{i:08d}" for i in range(1, count + 1)]
    assert b"".join(found.values()).decode() == text and next(iter(found.values())).decode().startswith(first)
    (note,) = read_facts(files(tmp_path / name)).notes
    assert note.startswith(f"{name} is {count} documents, {how}")


def test_chunks_are_about_equal_and_end_where_lines_do():
    paragraphs = "".join("word " * (20 + i % 30) + "\n\n" for i in range(9000))
    pieces, _ = sections(paragraphs)
    assert 0.8 * CHUNKS < len(pieces) <= CHUNKS and all(piece.endswith("\n\n") for piece in pieces)
    assert max(map(len, pieces)) < 2 * min(map(len, pieces)) and "".join(pieces) == paragraphs
    pieces, _ = sections("🙂" * 30_000)  # no line ends
    assert all(LEAST_CHUNK <= len(p) <= 1.5 * LEAST_CHUNK for p in pieces[:-1])


def test_a_separator_cuts_every_file_and_files_are_groups(tmp_path):
    three = "".join(f"{part}\n<|end|>\n" for part in PARTS[:3])
    write(tmp_path, {"a.txt": three, "b.txt": "one", "c.txt": "x\ty\n"})
    found = read(tmp_path, separator="<|end|>")
    assert list(found) == [f"a.txt/0000000{i}" for i in (1, 2, 3)] + ["b.txt", "c.txt"]
    assert read_facts(files(tmp_path, separator="<|end|>")).notes == ["cut at data.separator: 5 documents"]
    assert list(read(tmp_path / "c.txt", separator=r"\t").values()) == [b"x", b"y\n"]  # as typed in a shell
    for separator in ("<|no|>", ""):
        with pytest.raises(UserError, match=r"data\.separator"):
            read(tmp_path, separator=separator)


def test_copies_go_to_the_split_of_the_first_one(tmp_path):
    write(tmp_path, {f"{i:02d}.txt": PARTS[i] for i in range(40)})
    alone = {d.id: d.split for d in documents_of(files(tmp_path))}
    assert set(alone.values()) == set(SPLITS)
    write(tmp_path, {f"copy/{i:02d}.txt": PARTS[i] for i in range(40)})
    data = files(tmp_path)
    both = {d.id: d.split for d in documents_of(data)}
    assert {name: both[name] for name in alone} == alone and len(both) == 80
    assert all(both[f"copy/{name}"] == split for name, split in alone.items())
    (note,) = read_facts(data).notes
    assert "documents moved to the split of the first copy" in note

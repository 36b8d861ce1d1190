"""Text as people have it: tables with a column of text, other formats by name, and what is no UTF-8."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import conf, documents_of, files, texts_of
from tiny import write

from posenc.core.errors import UserError
from posenc.data.documents import Notes
from posenc.data.sources import read_documents

BODIES = ['the café said "hello", and left', "two\nlines", "🙂" * 50_000]


def write_csv(file, delimiter):
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, delimiter=delimiter)
        writer.writerow(["id", "body"])
        writer.writerows(enumerate(BODIES))


@pytest.fixture
def tables(tmp_path):
    """The same texts in a file of each format."""
    write_csv(tmp_path / "t.csv", ",")
    write_csv(tmp_path / "t.tsv", "\t")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    columns = {"id": [1, 2, 3], "body": BODIES}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    lines = [json.dumps({"body": body}) for body in BODIES]
    write(tmp_path, {"t.jsonl": "\n".join(lines), "t.ndjson": "\n".join(lines)})
    return tmp_path


FORMATS = ["t.csv", "t.tsv", "t.csv.gz", "t.parquet", "t.jsonl", "t.ndjson"]


@pytest.mark.parametrize("name", FORMATS)
def test_each_row_of_a_table_is_a_document(tables, name):
    texts = texts_of(tables / name, text_field="body")
    assert [text.decode() for text in texts.values()] == BODIES
    assert next(iter(texts)) == f"{name}:00000001"


@pytest.mark.parametrize("name", FORMATS)
def test_a_column_that_is_not_there_is_refused_with_the_columns(tables, name):
    with pytest.raises(UserError, match=r"(?s)data\.text_field=text: .*allowed: .*body"):
        texts_of(tables / name)


@pytest.fixture
def tables_with_gaps(tmp_path):
    """Two texts, and between them a row without one, in a file of each format."""
    bodies = ["first", None, "third"]
    pq.write_table(pa.table({"body": bodies}), tmp_path / "g.parquet")
    lines = [json.dumps({"body": body}) for body in bodies]
    write(tmp_path, {"g.jsonl": "\n".join(lines), "g.csv": "id,body\n1,first\n2,\n3,third\n"})
    return tmp_path


@pytest.mark.parametrize("name", ["g.csv", "g.jsonl", "g.parquet"])
def test_a_row_without_text_is_left_out_and_counted(tables_with_gaps, name):
    notes = Notes()
    documents = read_documents(files(tables_with_gaps / name, text_field="body"), notes)
    assert [document.id for document in documents] == [f"{name}:00000001", f"{name}:00000003"]
    assert notes.lines()[0] == "not read: 1 empty"


@pytest.mark.parametrize("row", ['{"title": "no body"}', '{"body": 3}', '{"body": ["a"]}'])
def test_a_line_of_json_without_the_field_or_with_another_kind_of_value_is_refused(tmp_path, row):
    write(tmp_path, {"g.jsonl": f'{{"body": "first"}}\n{row}'})
    with pytest.raises(UserError, match=r"data\.text_field=body: .*g\.jsonl:2"):
        texts_of(tmp_path / "g.jsonl", text_field="body")


def test_a_column_without_text_is_refused(tables):
    with pytest.raises(UserError, match=r"data\.text_field=id: does not hold text"):
        texts_of(tables / "t.parquet", text_field="id")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("cut.parquet", b"PAR1 and no more", "is not a whole Parquet file"),
        ("cut.csv", b'text\n"never closed\n', "row 1 is not CSV"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path, name, content, problem):
    with pytest.raises(UserError, match=problem):
        texts_of(write(tmp_path, {name: content}) / name)


# --- Other formats


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.json", "jq -c"),
        ("a.JSON.gz", "jq -c"),
        ("a.ipynb", "jupyter"),
        ("a.pdf", "pdftotext"),
        ("a.zip", "unpack"),
    ],
)
def test_a_file_that_is_not_plain_text_is_refused_by_name(tmp_path, name, advice):
    write(tmp_path, {name: '[{"text": "a"}]'})
    with pytest.raises(UserError, match=f"(?s){name}.*{advice}"):
        texts_of(tmp_path / name)


def test_a_glob_leaves_such_files_out_and_counts_them(tmp_path):
    write(tmp_path, {"a.json": "[]", "b.rst": "text"})
    notes = Notes()
    documents = read_documents(conf("files", paths=str(tmp_path / "*")), notes)
    assert [document.text for document in documents] == [b"text"]
    assert notes.lines()[0] == "not read: 1 .json"


def test_a_folder_leaves_packed_markup_out(tmp_path):
    write(
        tmp_path,
        {"a.json.gz": gzip.compress(b"[]"), "b.csv.gz": gzip.compress(b"text\na row\n"), "c.txt": "text"},
    )
    assert list(texts_of(tmp_path).values()) == [b"text"]


# --- Encodings


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32")],
)
def test_wide_text_is_named_with_a_command_whose_result_is_read(tmp_path, encoding, kind):
    text = "Ein Text, der nicht in UTF-8 ist: äöü"
    write(tmp_path, {"wide.txt": text.encode(encoding)})
    with pytest.raises(UserError, match=rf"1 {kind} \(wide.txt\)\n.*iconv -f {kind} -t UTF-8"):
        texts_of(tmp_path)
    # what iconv makes of it: Python's codecs of these names do the same
    recoded = (tmp_path / "wide.txt").read_bytes().decode(kind).encode()
    write(tmp_path, {"wide.txt": recoded})
    assert list(texts_of(tmp_path).values()) == [text.encode()]


def test_a_nul_byte_in_utf8_is_named_as_such(tmp_path):
    write(tmp_path, {"nul.txt": "naïve text\0 and more"})
    with pytest.raises(
        UserError, match=r"1 with a NUL byte \(nul.txt\)\n.*a binary file\?.*tr -d '\\000'"
    ) as caught:
        texts_of(tmp_path)
    assert "not UTF-8" not in str(caught.value)


def test_half_a_surrogate_pair_is_refused_with_its_line(tmp_path):
    write(tmp_path, {"a.jsonl": '{"text": "whole \\ud83d\\ude00"}\n{"text": "half \\ud83d"}'})
    with pytest.raises(UserError, match=r"a.jsonl:2: holds \\ud83d"):
        documents_of(conf("files", paths=str(tmp_path / "a.jsonl")))


# --- Front matter


@pytest.mark.parametrize("mark", ["---", "+++"])
@pytest.mark.parametrize(("choice", "begin"), [("keep", b"MARK"), ("drop", b"# Title")])
def test_front_matter_of_markdown_is_left_out_on_request(tmp_path, mark, choice, begin):
    page = f"{mark}\ntitle: x\n{mark}\n# Title\n\n---\nbody\n"
    write(tmp_path, {"a.md": page, "b.md": "no front matter\n---\n"})
    texts = texts_of(tmp_path, front_matter=choice)
    assert texts["a.md"].startswith(begin.replace(b"MARK", mark.encode()))
    assert texts["a.md"].endswith(b"---\nbody\n")
    assert texts["b.md"] == b"no front matter\n---\n"


@pytest.mark.parametrize(("name", "is_noted"), [("a.txt", False), ("a.md", True)])
def test_front_matter_is_noted_only_where_there_was_some(tmp_path, name, is_noted):
    write(tmp_path, {name: "---\ntitle: x\n---\ntext\n"})
    notes = Notes()
    read_documents(files(tmp_path, front_matter="drop"), notes)
    assert any("front matter left out of" in remark for remark in notes.remarks) == is_noted


# --- Any data set


def test_a_folder_with_a_data_set_is_read(repository):
    folder = repository(rows={"train": ["first", "second"]})
    documents = documents_of(conf("hf", repository=str(folder), text_field="text"))
    assert sorted(document.text for document in documents) == [b"first", b"second"]


def test_a_data_set_of_the_hub_needs_a_commit():
    with pytest.raises(UserError, match=r"data\.revision: is needed"):
        documents_of(conf("hf", repository="owner/name"))


def test_a_data_set_without_a_name_is_asked_for():
    with pytest.raises(UserError, match=r"data\.repository: must be given"):
        documents_of(conf("hf"))


def test_a_folder_that_is_not_there_is_no_data_set():
    with pytest.raises(UserError, match="there is no such folder"):
        documents_of(conf("hf", repository="./nothing"))

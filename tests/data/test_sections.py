"""How one text is cut into documents: at titles, at headings, in chunks."""

import pytest
from corpora import files, texts_of
from tiny import write

from posenc.data import read_facts
from posenc.data.sections import CHUNKS, LEAST_CHUNK, articles, sections

PARTS = [f"part {i} naïve\n\nmore of it\n" for i in range(40)]
WIKI = "".join(f" = Title {i} = \n\n{part}\n" for i, part in enumerate(PARTS))
MARKDOWN = "before\n" + "".join(
    f"# Part {i}\n\n## Chapter {i}.0\ntext\n\n## Chapter {i}.1\n```\n# comment\n```\n" for i in range(20)
)
COMMENTS = "".join(f"# comment {i:04d}\n" for i in range(1600))


@pytest.mark.parametrize(
    ("name", "text", "count", "first", "how"),
    [
        ("a.md", MARKDOWN, 41, "before", "cut at its headings (##)"),
        ("wiki.raw", WIKI, 40, " = Title 0 = ", "cut at ' = Title = ' lines"),
        ("code.txt", COMMENTS, 6, "# comment", "cut in chunks"),
    ],
)
class TestASingleFile:
    def test_is_cut_into_numbered_documents(self, tmp_path, name, text, count, first, how):
        write(tmp_path, {name: text, "other.xyz": "x"})
        documents = texts_of(tmp_path / name)
        assert list(documents) == [f"{name}/{number:08d}" for number in range(1, count + 1)]
        assert next(iter(documents.values())).decode().startswith(first)

    def test_loses_no_text(self, tmp_path, name, text, count, first, how):
        write(tmp_path, {name: text})
        assert b"".join(texts_of(tmp_path / name).values()).decode() == text

    def test_has_a_note_how_it_was_cut(self, tmp_path, name, text, count, first, how):
        write(tmp_path, {name: text})
        (note,) = read_facts(files(tmp_path / name)).notes
        assert note.startswith(f"{name} is {count} documents, {how}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", MARKDOWN),
        ("wiki.raw", WIKI),
        ("code.txt", COMMENTS),
        ("paragraphs.txt", "".join(f"{i} " + "word " * (20 + i % 30) + "\n\n" for i in range(900))),
        ("blank.txt", "\n" * 9000 + "end\n"),
    ],
)
class TestLineEndsOfWindows:
    def test_cut_a_text_at_the_same_places(self, name, text):
        pieces, how_cut = sections(text, markdown=name.endswith(".md"))
        with_windows_ends = [piece.replace("\n", "\r\n") for piece in pieces]
        text_of_windows = text.replace("\n", "\r\n")
        assert sections(text_of_windows, markdown=name.endswith(".md")) == (with_windows_ends, how_cut)

    def test_may_be_mixed_with_others(self, name, text):
        pieces, _ = sections(text, markdown=name.endswith(".md"))
        mixed = text.replace("1\n", "1\r\n").replace(" \n\n", " \n\r\n")
        pieces_of_mixed, _ = sections(mixed, markdown=name.endswith(".md"))
        assert [piece.replace("\r\n", "\n") for piece in pieces_of_mixed] == pieces
        assert "".join(pieces_of_mixed).strip() == mixed.strip()


def test_sections_begin_at_higher_headings_too():
    parts = [f"# Part {i}\n\nforeword\n\n## Chapter {i}\ntext\n" for i in range(29)]
    # one more of the lower level, since the higher one alone has too few
    text = "".join(parts) + "## Last\n"
    pieces, how_cut = sections(text, markdown=True)
    assert how_cut == "cut at its headings (##)"
    assert [piece.split(" ")[0] for piece in pieces] == ["#", "##"] * 29 + ["##"]


# Code that holds signs of fences, and comments that look like headings.
INNER_FENCES = {
    "longer outer fence": "````\n```\n# comment\n```\n````\n",
    "other sign": "```\n~~~\n# comment\n```\n",
    "a language is no end": "```\n```python\n# comment\n```\n",
    "longer end": "```\n# comment\n`````\n",
    "code within a line": "```one``` two\n",
    "tildes": "~~~~ a `name`\n~~~\n# comment\n~~~~\n",
}


@pytest.mark.parametrize("code", INNER_FENCES.values(), ids=INNER_FENCES)
def test_a_fence_ends_with_one_of_its_sign_that_is_as_long(code):
    parts = [f"# Part {number}\n{code}" for number in range(40)]
    assert sections("".join(parts), markdown=True)[0] == parts


@pytest.fixture(scope="module")
def paragraphs():
    return "".join("word " * (20 + i % 30) + "\n\n" for i in range(9000))


def test_chunks_end_where_paragraphs_do(paragraphs):
    pieces, _ = sections(paragraphs)
    assert "".join(pieces) == paragraphs
    assert all(piece.endswith("\n\n") for piece in pieces)


def test_chunks_are_about_equal(paragraphs):
    lengths = [len(piece) for piece in sections(paragraphs)[0]]
    assert 0.8 * CHUNKS < len(lengths) <= CHUNKS
    assert max(lengths) < 2 * min(lengths)


def test_text_without_line_ends_is_cut_by_length():
    pieces, _ = sections("🙂" * 30_000)
    assert all(LEAST_CHUNK <= len(piece) <= 1.5 * LEAST_CHUNK for piece in pieces[:-1])


# --- WikiText

ROWS = [
    "", " = First = \n", "", " Some text with 1 @,@ 000 . \n", "", " = = Section = = \n", "", " More . \n",
    " = not a title , inside a table = \n", "", " = = = Deeper = = = \n", "", " = Second : x = y = \n", "",
    " = Third = \n", "", " End . \n",
]  # fmt: skip


def test_articles_begin_at_titles():
    first_rows = [article.strip().split("\n")[0].strip() for article in articles(ROWS)]
    assert first_rows == ["= First =", "= Third ="]


@pytest.mark.parametrize("text", ["= = Section = =", "inside a table", "Deeper", "Second : x = y"])
def test_what_only_looks_like_a_title_stays_in_its_article(text):
    assert text in articles(ROWS)[0]


def test_an_article_keeps_its_rows():
    assert articles(ROWS)[1] == " = Third = \n\n End . \n"


def test_rows_before_the_first_title_are_an_article():
    assert articles(["before\n", *ROWS])[0] == "before\n\n"

"""Splits, fingerprints and groups of documents are the same on every machine, forever."""

from collections import Counter

import pytest

from posenc.data.documents import Document, fingerprint_of, groups_of, split_of

SHARES = {"validation": 0.1, "test": 0.2}


@pytest.mark.parametrize(
    ("document_id", "split"),
    [
        ("core/add.py", "train"),
        ("solvers/ode/ode.py", "train"),
        ("printing/str.py", "validation"),
        ("sets/sets.py", "test"),
    ],
)
def test_the_split_of_an_id_never_changes(document_id, split):
    assert split_of(document_id, SHARES) == split


def test_splits_have_their_shares():
    counts = Counter(split_of(f"doc{i}", SHARES) for i in range(5000))
    assert abs(counts["test"] - 1000) < 120
    assert abs(counts["validation"] - 500) < 90


def test_a_larger_share_keeps_what_is_in_it():
    larger = {"validation": 0.1, "test": 0.4}
    in_test = [str(i) for i in range(300) if split_of(str(i), SHARES) == "test"]
    assert all(split_of(document_id, larger) == "test" for document_id in in_test)


DOCUMENTS = [
    Document("a", b"one", "train"),
    Document("b", "zwö".encode(), "test"),
    Document("c/d", b"", "train"),
]
PINNED = "f5d7f778e020b2dc574343f2de0b9a31c63b3f663f18553e5b936b29bd9c5d59"


def test_the_fingerprint_never_changes():
    assert fingerprint_of(DOCUMENTS) == PINNED


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(Document("a2", b"one", "train"), id="another name"),
        pytest.param(Document("a", b"onE", "train"), id="another text"),
        pytest.param(Document("a", b"one", "test"), id="another split"),
        pytest.param(Document("ao", b"ne", "train"), id="cut elsewhere"),
    ],
)
def test_the_fingerprint_sees_every_part(first):
    assert fingerprint_of([first, *DOCUMENTS[1:]]) != PINNED


def test_names_that_are_no_text_have_different_fingerprints():
    names = ("a\udcfe", "a\udcff", "a?")
    assert len({fingerprint_of([Document(name, b"x", "train")]) for name in names}) == 3


@pytest.mark.parametrize(
    ("ids", "groups"),
    [
        (["__init__.py", "core/add.py", "core/expr/a.py", "sets/a.py", "z.py"], [0, 1, 1, 2, 3]),
        (["texts/raw/ann/1", "texts/raw/bob/1", "texts/raw/bob/2"], [0, 1, 1]),
        (["test/00000000", "test/00000001"], None),
    ],
)
def test_groups_are_the_first_folders_that_differ(ids, groups):
    assert groups_of(ids) == groups

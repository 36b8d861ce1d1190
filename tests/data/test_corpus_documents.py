from __future__ import annotations

from collections import Counter

from posenc.core.errors import visible
from posenc.data.documents import Document, fingerprint, split_of

SHARES = {"validation": 0.1, "test": 0.2}
TINY = [Document("a", b"one", "train"), Document("b", "zwö".encode(), "test"), Document("c/d", b"", "train")]
TINY_FINGERPRINT = "f5d7f778e020b2dc574343f2de0b9a31c63b3f663f18553e5b936b29bd9c5d59"


def test_split_of_an_id_never_changes() -> None:
    ids = ["core/add.py", "solvers/ode/ode.py", "printing/str.py", "sets/sets.py"]
    assert [split_of(i, SHARES) for i in ids] == ["train", "train", "validation", "test"]


def test_shares_are_about_what_was_asked() -> None:
    counts = Counter(split_of(f"doc{i}", SHARES) for i in range(5000))
    assert abs(counts["test"] - 1000) < 120 and abs(counts["validation"] - 500) < 90


def test_growing_the_test_share_keeps_what_is_in_it() -> None:
    more = {"validation": 0.1, "test": 0.4}
    assert all(split_of(i, more) == "test" for i in map(str, range(300)) if split_of(i, SHARES) == "test")


def test_fingerprint_is_pinned_and_blind_to_order() -> None:
    assert fingerprint(TINY) == TINY_FINGERPRINT
    assert fingerprint(reversed(TINY)) == TINY_FINGERPRINT


def test_fingerprint_sees_every_part() -> None:
    changed = [
        [Document("a2", b"one", "train"), *TINY[1:]],
        [Document("a", b"onE", "train"), *TINY[1:]],
        [Document("a", b"one", "test"), *TINY[1:]],
        TINY[1:],
        [Document("ao", b"ne", "train"), *TINY[1:]],  # the same bytes, cut elsewhere
    ]
    assert len({fingerprint(TINY), *map(fingerprint, changed)}) == 6


def test_names_are_shown_without_control_characters() -> None:
    assert visible("a\x1b[31m\nb\udcff ü") == r"a\x1b[31m\nb\udcff ü"


def test_file_names_that_are_no_text_stay_apart() -> None:
    odd = [[Document(f"a{c}", b"x", "train")] for c in ("\udcfe", "\udcff", "?")]
    assert len(set(map(fingerprint, odd))) == 3 and split_of("a\udcff", SHARES)

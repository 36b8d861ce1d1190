"""Streams: read once, document by document, from a local copy of a hub data set."""

import json
import shutil

import pytest
from corpora import BYTES, bpe, conf, documents_of, story

from posenc.core.atomic_files import canonical, digest_of
from posenc.core.errors import RunError, UserError
from posenc.data import inspect, prepare, read_facts, sources
from posenc.data.documents import SPLITS, fingerprint_of

# --- Shares


@pytest.fixture
def pages(repository):
    """The documents of a stream of 4100 pages, of which 100 are copies, and three blank rows."""
    rows = {"train": [f"page {i % 4000}" for i in range(4100)] + ["", "  \n", None]}
    folder = repository(rows=rows, group=1000)
    return documents_of(conf("fineweb_edu", config=None, repository=str(folder)))


def test_blank_rows_are_left_out(pages):
    assert len(pages) == 4100


def test_copies_are_never_on_both_sides(pages):
    assert len({(document.text, document.split) for document in pages}) == 4000


def test_shares_are_kept(pages):
    shares = {split: sum(document.split == split for document in pages) / 4100 for split in SPLITS}
    assert shares == pytest.approx({"train": 0.9, "validation": 0.03, "test": 0.07}, abs=0.015)


# --- Limits


@pytest.fixture
def stories(repository):
    """Settings of a stream of 60 and 20 stories."""
    return conf("tinystories", repository=str(repository()))


def test_a_limit_of_documents_takes_the_first_rows_of_each_split(stories):
    ids = [document.id for document in documents_of(stories.with_changes(documents=7))]
    assert ids == [f"{split}/{i:09d}" for split in ("train", "validation") for i in range(7)]


@pytest.mark.parametrize(("extra", "count"), [(0, 5), (1, 5), (-1, 4)])
def test_a_limit_of_bytes_takes_the_rows_that_fit(stories, extra, count):
    limit = len("".join(story(i) for i in range(5)).encode()) + extra
    documents = documents_of(stories.with_changes(bytes=limit))
    train = [document for document in documents if document.split == "train"]
    assert len(train) == count
    assert sum(len(document.text) for document in train) <= limit


def test_a_limit_moves_no_document(stories):
    limited = documents_of(stories.with_changes(documents=7))
    assert set(limited) <= set(documents_of(stories.with_changes(bytes=None)))


# --- Read once


def test_a_stream_is_read_once_for_all_tokenizers(stories, reads, cache):
    facts = read_facts(stories)
    for tokenizer in (BYTES, bpe()):
        prepare(stories, tokenizer, facts)
    assert reads == ["tinystories"]
    assert not facts.text.is_loaded
    assert not list((cache / "tokens").glob(".*"))


def test_the_facts_of_a_stream_are_those_of_its_documents(stories):
    facts = read_facts(stories)
    documents = documents_of(stories)
    train = [document for document in documents if document.split == "train"]
    assert facts.fingerprint == fingerprint_of(documents)
    assert facts.train_fingerprint == fingerprint_of(train)


def test_the_tokens_of_a_stream_are_those_of_its_documents(stories):
    store = prepare(stories, BYTES)
    test = [document.id for document in documents_of(stories) if document.split == "test"]
    assert store.splits["test"].ids == test
    assert store.document("train", 7).tobytes() == story(7).encode()


# --- Copies between splits


@pytest.fixture
def repeated(repository):
    """Settings of a stream whose held-out stories are all training stories too."""
    stories = [story(i) for i in range(60)]
    return conf(
        "tinystories", repository=str(repository(rows={"train": stories, "validation": stories[:20]}))
    )


def test_a_test_split_that_only_repeats_the_training_text_is_refused(repeated):
    with pytest.raises(UserError, match="has the text of a training document"):
        inspect(repeated, BYTES, splits=["test"], needed_tokens=9, context_length=8)


def test_a_repeated_test_split_may_be_measured(repeated):
    facts = inspect(repeated, BYTES, splits=["test"], needed_tokens=9, context_length=None)
    count = len(facts.sizes["test"])
    assert f"also in the training split: {count} of {count} test documents" in facts.notes


# --- Pinned


@pytest.fixture
def hub_stories(repository, pinned):
    """Settings of a stream of the hub at its pinned commit."""
    pinned(repository())
    return conf("tinystories")


def test_a_pinned_stream_is_known_without_asking_again(hub_stories, reads):
    first = read_facts(hub_stories)
    store = prepare(hub_stories, BYTES)
    assert read_facts(hub_stories) == first
    assert store.fingerprint == first.fingerprint
    assert reads == ["tinystories"]


def test_a_pinned_stream_is_identified_by_its_commit(hub_stories):
    identity = read_facts(hub_stories).identity
    assert identity["revision"] == hub_stories.parameters["revision"]
    assert "fingerprint" not in identity


def test_each_setting_of_a_pinned_stream_makes_another_one(hub_stories):
    changes = [
        {},
        {"bytes": 1000},
        {"documents": 5},
        {"revision": "0" * 40},
        {"splits": {"train": {"train": 1}}},
    ]
    identities = [sources.pinned_identity(hub_stories.with_changes(**change)) for change in changes]
    assert len({json.dumps(identity, sort_keys=True) for identity in identities}) == len(changes)


def test_a_limit_is_the_same_however_it_is_written(hub_stories):
    as_float = hub_stories.with_changes(bytes=2e8)
    assert sources.pinned_identity(as_float) == sources.pinned_identity(hub_stories)


def test_a_pinned_stream_whose_tokens_are_gone_is_read_again(hub_stories, reads, cache):
    first = read_facts(hub_stories)
    shutil.rmtree(cache / "tokens")
    assert prepare(hub_stories, bpe()).fingerprint == first.fingerprint
    assert reads == ["tinystories"] * 2


def test_a_pinned_stream_that_has_changed_is_refused(hub_stories, cache, pinned, repository):
    facts = read_facts(hub_stories)
    shutil.rmtree(cache / "tokens")
    pinned(repository("other", rows={"train": ["another text"] * 9, "validation": ["and more"] * 9}))
    with pytest.raises(RunError, match="has changed"):
        prepare(hub_stories, BYTES, facts)


@pytest.mark.parametrize("share", [1, 1.0])
def test_all_of_a_split_is_the_same_share_however_it_is_written(hub_stories, share):
    splits = {"train": {"train": share}, "validation": {"validation": 0.5, "test": 0.5}}
    identity = sources.pinned_identity(hub_stories.with_changes(splits=splits))
    assert digest_of(identity) == digest_of(sources.pinned_identity(hub_stories))


@pytest.mark.parametrize("name", ["fineweb_edu", "pg19", "tinystories"])
def test_the_identity_of_a_corpus_has_the_splits_of_its_yaml(name):
    identity = sources.pinned_identity(conf(name))
    assert canonical(identity["splits"]) == canonical(conf(name).parameters["splits"])


def test_a_split_that_the_data_set_does_not_have_is_named(stories):
    with pytest.raises(UserError, match=r"data\.splits=trial: .*no such split\n.*train, validation"):
        read_facts(stories.with_changes(splits={"trial": {"train": 1}}))


@pytest.mark.parametrize(("key", "value"), [("text_field", "story"), ("config", "big")])
def test_what_the_data_set_does_not_have_is_named(stories, key, value):
    with pytest.raises(UserError) as caught:
        read_facts(stories.with_changes(**{key: value}))
    assert caught.value.key == f"data.{key}"

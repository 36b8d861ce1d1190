"""Streams: read once, document by document, from a local copy of a hub data set."""

import json
import shutil

import pytest
from corpora import BPE, BYTES, conf, documents_of, story

from posenc.core.errors import RunError, UserError
from posenc.data import inspect, prepare, read_facts, sources
from posenc.data.documents import fingerprint_of


def test_copies_are_never_on_both_sides_blank_rows_are_left_out_and_shares_are_kept(repository):
    rows = {"train": [f"page {i % 4000}" for i in range(4100)] + ["", "  \n", None]}
    folder = repository(rows=rows, group=1000)
    found = documents_of(conf("fineweb_edu", config=None, repository=str(folder)))
    assert len(found) == 4100 and len({(d.text, d.split) for d in found}) == 4000
    share = {side: sum(d.split == side for d in found) / 4100 for side in ("train", "validation", "test")}
    assert share == pytest.approx({"train": 0.9, "validation": 0.03, "test": 0.07}, abs=0.015)


def test_limits_take_the_first_rows_of_each_split(repository):
    data = conf("tinystories", repository=str(repository()))
    few = documents_of({**data, "documents": 7})
    assert [d.id for d in few] == [f"{split}/{i:09d}" for split in ("train", "validation") for i in range(7)]
    size = len("".join(story(i) for i in range(5)).encode())
    for limit, count in ((size, 5), (size + 1, 5), (size - 1, 4)):
        found = [d for d in documents_of({**data, "bytes": limit}) if d.split == "train"]
        assert len(found) == count and sum(len(d.text) for d in found) <= limit
    assert set(few) <= set(documents_of({**data, "bytes": None}))  # a limit moves no document


def test_it_is_streamed_once_for_all_tokenizers(repository, reads, cache):
    data = conf("tinystories", repository=str(repository()))
    facts = read_facts(data)
    stores = [prepare(data, tokenizer, facts) for tokenizer in (BYTES, BPE)]
    assert reads == ["tinystories"] and facts.loaded is None and not list((cache / "tokens").glob(".*"))
    documents = documents_of(data)
    assert facts.fingerprint == fingerprint_of(documents)
    assert facts.train_fingerprint == fingerprint_of([d for d in documents if d.split == "train"])
    assert stores[0].splits["test"].ids == [d.id for d in documents if d.split == "test"]
    assert stores[0].document("train", 7).tobytes() == story(7).encode()


def test_a_test_split_that_only_repeats_the_training_text_is_refused(repository):
    texts = [story(i) for i in range(60)]
    data = conf("tinystories", repository=str(repository(rows={"train": texts, "validation": texts[:20]})))
    with pytest.raises(UserError, match="has the text of a training document"):
        inspect(data, BYTES, splits=["test"], needed_tokens=9, context_length=8)
    facts = inspect(data, BYTES, splits=["test"], needed_tokens=9, context_length=None)  # `eval` may
    count = len(facts.sizes["test"])
    assert f"also in the training split: {count} of {count} test documents" in facts.notes


def test_a_pinned_stream_is_known_without_asking_again(repository, reads, cache, pinned):
    pinned(repository())
    data = conf("tinystories")
    first = read_facts(data)
    store = prepare(data, BYTES)
    again = read_facts(data)
    assert reads == ["tinystories"] and again == first and store.fingerprint == again.fingerprint
    assert first.identity["revision"] == data["revision"] and "fingerprint" not in first.identity
    changes = {"bytes": 1000, "documents": 5, "revision": "0" * 40, "splits": {"train": {"train": 1}}}
    ids = [sources.pinned_identity({**data, key: value}) for key, value in changes.items()]
    own = sources.pinned_identity(data)
    assert len({json.dumps(one, sort_keys=True) for one in (own, *ids)}) == 5
    assert sources.pinned_identity({**data, "bytes": 2e8}) == own  # however the number is written
    shutil.rmtree(cache / "tokens")  # the facts are kept: the text is read again, and is the same
    assert prepare(data, BPE).fingerprint == first.fingerprint and reads == ["tinystories"] * 2
    shutil.rmtree(cache / "tokens")
    pinned(repository("other", rows={"train": ["another text"] * 9, "validation": ["and more"] * 9}))
    with pytest.raises(RunError, match="has changed"):
        prepare(data, BYTES, first)


@pytest.mark.parametrize(("key", "value"), [("text_field", "story"), ("config", "big")])
def test_what_the_data_set_does_not_have_is_named(repository, key, value):
    with pytest.raises(UserError) as caught:
        read_facts(conf("tinystories", repository=str(repository()), **{key: value}))
    assert caught.value.key == f"data.{key}"

"""`posenc data list|info|prepare` as a user calls them."""

import json
from pathlib import Path

from corpora import conf, documents_of
from tiny import TINY, write

from posenc.core.paths import conf_dir
from posenc.data import hub


def test_list_names_every_corpus_and_what_needs_a_network(posenc, cache):
    result = posenc("data", "list")
    assert result.code == 0 and not result.err and not cache.exists()
    assert all(len(line) <= 80 for line in result.out.splitlines() if str(cache) not in line)
    rows = {row["name"]: row for row in json.loads(posenc("data", "list", "--json").out)}
    assert set(rows) == {path.stem for path in (conf_dir() / "data").glob("*.yaml")}
    assert all(f"\n{name} " in result.out for name in rows)
    assert rows["wikitext2"]["network"] and not rows["sympy"]["network"]
    assert all(row["licence"] and row["size"] and not row["cached"] for row in rows.values())


def test_info_counts_what_fits(posenc, tmp_path, cache):
    texts = {f"{i}.txt": f"{i:02d}" + "x" * (64 * i + 62) for i in range(80)}
    folder = write(tmp_path / "with space" / "ü", {**texts, "notes.pdf": "x"})
    asked = ("data", "info", "data=files", f"data.paths={folder}", "context_length=100")
    result, facts = posenc(*asked), json.loads(posenc(*asked, "--json").out)
    assert result.code == 0 and max(map(len, result.out.splitlines())) <= 80 and not result.err
    assert facts["fingerprint"] in result.out and not (cache / "tokens").exists()
    documents = documents_of(conf("files", paths=str(folder)))
    sizes = {name: [len(d.text) for d in documents if d.split == name] for name in facts["splits"]}
    for name, split in facts["splits"].items():
        assert (split["documents"], split["bytes"]) == (len(sizes[name]), sum(sizes[name]))
    for row in facts["lengths"]:
        fits = (sum(size > times * row["context_length"] for size in sizes["test"]) for times in (1, 8))
        assert (row["test_documents"], row["test_documents_8x"]) == tuple(fits)
    assert facts["notes"][0] == "not read: 1 .pdf" and all(note in result.out for note in facts["notes"])


def test_groups_are_in_the_records(posenc, working_folder):
    texts = {f"author{i % 6}/{i:02d}.txt": f"{i} of a text with words in it.\n" * (i + 30) for i in range(60)}
    write(working_folder / "texts", texts)
    done = posenc("train", "encoding=nope", *TINY, "data.paths=texts")
    assert done.code == 0, done.err
    (results,) = working_folder.glob("runs/*/*/results.json")
    test = [
        d.id for d in documents_of(conf("files", paths=str(working_folder / "texts"))) if d.split == "test"
    ]
    authors = list(dict.fromkeys(name.split("/")[0] for name in test))
    records = json.loads(results.read_text())["records"]
    assert {record["protocol"] for record in records} >= {"fixed-target", "trigram", "positions"}
    for record in records:
        sums = record["per_document"]
        assert sums["group"] == [authors.index(test[i].split("/")[0]) for i in sums["document"]]


def test_prepare_is_enough_to_train_without_the_text(posenc, cache, monkeypatch, repository, pinned):
    """A pinned corpus: after `prepare` nobody opens its source, for training, measuring and the trigram."""
    rows = {"train": ["word " * 400] * 6, "validation": ["held " * 400] * 2, "test": ["test " * 400] * 4}
    pinned(repository(rows=rows))
    asked = ("data=wikitext2", "data.rows=documents", "tokenizer=bpe", "tokenizer.vocab_size=260")
    done = posenc("data", "prepare", *asked)
    assert done.code == 0 and "260" not in done.out and str(cache) in done.err
    assert "tokens of bpe" in done.err and "tokens of bytes" in done.err
    monkeypatch.setattr(hub, "load", None)  # whoever opens the source fails
    small = ("experiment=smoke", "train.tokens=2048", "context_length=16", "eval.lengths=[1x,2x]")
    done = posenc("train", *asked, *small)
    assert done.code == 0, done.err
    (results,) = Path().glob("runs/*/*/results.json")
    assert "trigram" in {record["protocol"] for record in json.loads(results.read_text())["records"]}

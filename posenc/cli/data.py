"""`posenc data`: which corpora there are, how large they are, and tokenising ahead."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from posenc.config.overrides import CommandLine, refuse_others
from posenc.core.console import say
from posenc.core.errors import visible
from posenc.core.paths import cache_dir
from posenc.data import CorpusFacts, corpus_notes, list_corpora, prepare, read_facts
from posenc.data.token_cache import entry_of

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)  # context lengths that `info` answers for
READ = {"data", "tokenizer", "context_length", "experiment"}
MULTIPLE = 8  # in the names of the JSON, so whatever the default lengths are


def print_corpora(as_json: bool) -> None:
    """Print every corpus of `conf/data` and of installed packages."""
    rows = list_corpora()
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("data=", "what it is, licence", "size", "network"):
        table.add_column(name, no_wrap=name in ("data=", "size", "network"))
    for row in rows:
        about = f"{row['description']} ({row['licence'] or 'no licence given'})"
        network = "no" if not row["network"] else "cached" if row["cached"] else "needed"
        table.add_row(*map(escape, (row["name"], about, row["size"], network)))
    Console().print(table)
    print(f"cache: {visible(cache_dir())}")


def print_info(line: CommandLine, as_json: bool) -> None:
    """Print sizes, splits, fingerprint and what lengths fit. Raises UserError, RunError."""
    settings = _settings(line)
    _print_facts(read_facts(settings["data"]), settings["context_length"], as_json)


def prepare_and_print(line: CommandLine) -> None:
    """Fetch and tokenise the corpus that the overrides choose. Raises UserError, RunError."""
    settings = _settings(line)
    facts = read_facts(settings["data"])
    _print_facts(facts, settings["context_length"])
    # the trigram beside fixed-target reads bytes
    tokenizers = {one["name"]: one for one in ({"name": "bytes"}, settings["tokenizer"])}
    for name, chosen in tokenizers.items():
        store = prepare(settings["data"], chosen, facts=facts)
        count, size = len(store.tokens), sum(map(sum, facts.sizes.values()))
        say(f"tokenised: {count:,} tokens of {name}, {size / count:.2f} bytes each, in")
        say(f"  {entry_of(facts.fingerprint, store.tokenizer)}")
    say("training and evaluation on it with this tokenizer need no network now")


def _settings(line: CommandLine) -> dict[str, Any]:
    from posenc.config.checks import check_length  # imports torch
    from posenc.config.compose import compose_one

    refuse_others(line, READ, "the corpus")
    settings = compose_one("train", line, "corpus").settings
    return {**settings, "context_length": check_length(settings["context_length"])}


def _fits(facts: CorpusFacts, asked: int) -> list[dict[str, int]]:
    """Return how many documents are longer than each context length (bytes)."""
    train, test = facts.sizes["train"], facts.sizes["test"]
    return [
        {
            "context_length": length,
            "train_documents": sum(size > length for size in train),
            "test_documents": sum(size > length for size in test),
            f"test_documents_{MULTIPLE}x": sum(size > MULTIPLE * length for size in test),
        }
        for length in sorted({*LENGTHS, asked})
    ]


def _print_facts(facts: CorpusFacts, asked: int, as_json: bool = False) -> None:
    splits = {
        split: {"documents": len(sizes), "bytes": sum(sizes), "longest": max(sizes, default=0)}
        for split, sizes in facts.sizes.items()
    }
    notes, fits = corpus_notes(facts, "test", MULTIPLE * asked, asked), _fits(facts, asked)
    if as_json:
        named = {"name": facts.name, "fingerprint": facts.fingerprint, "identity": facts.identity}
        print(json.dumps({**named, "splits": splits, "lengths": fits, "notes": notes}, indent=1))
        return
    table = Table(escape(facts.name), *splits["train"], box=None, pad_edge=False)
    for split, row in splits.items():
        table.add_row(split, *(f"{n:,}" for n in row.values()))
    heads = "context_length", "training documents", "test documents", f"at {MULTIPLE}x"
    lengths = Table(*heads, box=None, pad_edge=False)
    for row in fits:
        lengths.add_row(*(f"{n:,}" for n in row.values()))
    for column in (*table.columns[1:], *lengths.columns):
        column.justify = "right"
    console = Console(highlight=False)
    console.print(table)
    for line in (f"fingerprint {facts.fingerprint}", *notes):
        console.print(escape(visible(line)), soft_wrap=True)
    console.print("", lengths, "lengths in bytes; tokens of other tokenizers stand for several, so fewer fit")

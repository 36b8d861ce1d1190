"""`posenc data`: which corpora there are, how large they are, and tokenising ahead."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from posenc.config.overrides import CommandLine, refuse_others
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import cache_dir
from posenc.data import CorpusFacts, cached_of, corpus_notes, list_corpora, prepare, read_facts
from posenc.data.documents import SPLITS
from posenc.data.token_cache import entry_of
from posenc.data.tokenizers import ByteTokenizer

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)  # context lengths that `info` answers for
READ = {"data", "tokenizer", "context_length", "experiment"}  # the settings that count here
MULTIPLE = 8  # in the names of the JSON, so whatever the default lengths are


def print_corpora(as_json: bool) -> None:
    """Print every corpus of `conf/data` and of installed packages."""
    rows = list_corpora()
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("data=", "what it is, licence", "size", "network", "cached"):
        table.add_column(name, no_wrap=name in ("data=", "size", "network"))
    for row in rows:
        about = f"{row['description']} ({row['licence'] or 'no licence given'})"
        network = "no" if not row["network"] else "not now" if row["cached"] else "needed"
        table.add_row(*map(escape, (row["name"], about, row["size"], network, _cached(row["cached"]))))
    Console().print(table)
    print(f"cached: as tokens of (vocabulary) in {visible(cache_dir())}")


def _cached(rows: list[dict[str, Any]]) -> str:
    names = [
        "bytes" if row["tokenizer"] == ByteTokenizer.name else f"{row['tokenizer']} ({row['vocab_size']})"
        for row in rows
    ]
    return ", ".join(dict.fromkeys(names)) or "-"


def print_info(line: CommandLine, as_json: bool) -> None:
    """Print sizes, splits, fingerprint and what lengths fit. Raises UserError, RunError."""
    settings = _settings(line)
    facts = read_facts(settings["data"])
    if not as_json:
        _print_facts(facts, settings["context_length"])
        return
    splits = {
        split: {"documents": len(sizes), "bytes": sum(sizes), "longest": max(sizes, default=0)}
        for split, sizes in facts.sizes.items()
    }
    document = {
        "name": facts.name,
        "fingerprint": facts.fingerprint,
        "identity": facts.identity,
        "splits": splits,
        "lengths": _all_fits(facts, settings["context_length"]),
        "notes": _notes(facts, settings["context_length"]),
        "cached": cached_of(facts.data),
    }
    print(json.dumps(document, indent=1))


def prepare_and_print(line: CommandLine) -> None:
    """Fetch and tokenise the corpus that the overrides choose. Raises UserError, RunError."""
    settings = _settings(line)
    facts = read_facts(settings["data"])
    tokenizers = {settings["tokenizer"]["name"]: settings["tokenizer"]}
    # the trigram beside fixed-target reads bytes
    tokenizers.setdefault(ByteTokenizer.name, {"name": ByteTokenizer.name})
    stores = {name: prepare(settings["data"], chosen, facts=facts) for name, chosen in tokenizers.items()}
    _print_facts(facts, settings["context_length"])
    for name, store in stores.items():
        count = len(store.tokens)
        each = sum(map(sum, facts.sizes.values())) / max(1, count)
        size = store.tokens.nbytes + (0 if store.token_bytes is None else store.token_bytes.nbytes)
        say(f"tokenised: {count:,} tokens of {name}, {each:.2f} bytes each, {size / 1e6:,.1f} MB in")
        say(f"  {entry_of(facts.fingerprint, store.tokenizer)}")
    if empty := [name for name in SPLITS if not facts.sizes[name]]:
        say(f"empty splits: {', '.join(empty)}; posenc train refuses this corpus as it is")
    else:
        say("training and evaluation on it with this tokenizer need no network now")


def _settings(line: CommandLine) -> dict[str, Any]:
    from posenc.config.checks import whole  # imports torch
    from posenc.config.compose import compose_jobs

    refuse_others(line, READ, "is nothing that the corpus depends on")
    if line.multirun:
        hint = "--config-dir is taken"
        raise UserError("data", None, "takes one corpus at a time, and no -m", hint=hint)
    settings = compose_jobs("train", line).jobs[0].settings
    return {**settings, "context_length": whole("context_length", settings["context_length"], least=2)}


def _all_fits(facts: CorpusFacts, asked: int) -> list[dict[str, Any]]:
    return [_fits(facts, length) for length in sorted({*LENGTHS, asked})]


def _fits(facts: CorpusFacts, length: int) -> dict[str, Any]:
    """Return what a context length (bytes) can do on this corpus."""
    longest = max(0, max(facts.sizes["test"], default=0) - 1)  # the byte after a window is its last target
    multiple = 2 ** ((longest // length).bit_length() - 1) if longest >= length else None
    return {
        "context_length": length,
        "train_documents": facts.reaching("train", length),
        "test_documents": facts.reaching("test", length),
        f"test_documents_{MULTIPLE}x": facts.reaching("test", MULTIPLE * length),
        "longest_multiple": multiple,
        "longest_window": None if multiple is None else multiple * length,
    }


def _notes(facts: CorpusFacts, asked: int) -> list[str]:
    return corpus_notes(facts, "test", MULTIPLE * asked)


def _print_facts(facts: CorpusFacts, asked: int) -> None:
    table = Table(escape(facts.name), box=None, pad_edge=False)
    for name in ("documents", "bytes", "longest"):
        table.add_column(name, justify="right")
    for split, sizes in facts.sizes.items():
        table.add_row(split, *(f"{n:,}" for n in (len(sizes), sum(sizes), max(sizes, default=0))))
    lengths = Table(box=None, pad_edge=False)
    heads = "context_length", "training documents", f"test documents at 1x, {MULTIPLE}x", "longest that fits"
    for name in heads:
        lengths.add_column(name, justify="right")
    for row in _all_fits(facts, asked):
        tests = f"{row['test_documents']:,}, {row[f'test_documents_{MULTIPLE}x']:,}"
        multiple = row["longest_multiple"]
        longest = "none" if multiple is None else f"{multiple:,}x = {row['longest_window']:,}"
        lengths.add_row(str(row["context_length"]), f"{row['train_documents']:,}", tests, longest)
    console = Console(highlight=False)
    console.print(table)
    for line in (f"fingerprint {facts.fingerprint}", *_notes(facts, asked)):
        console.print(escape(line), soft_wrap=True)
    console.print("", lengths, "lengths in bytes; tokens of other tokenizers stand for several, so fewer fit")

"""`posenc data`: which corpora there are, how large they are, and tokenising ahead."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse, refuse_others, refuse_unknown_flags
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import cache_dir
from posenc.data import CorpusFacts, TokenStore, cached_of, list_corpora, prepare, read_facts
from posenc.data.documents import SPLITS
from posenc.data.entry import entry_of
from posenc.data.tokenizers import ByteTokenizer

LENGTHS = (
    64,
    128,
    256,
    512,
    1024,
    2048,
    4096,
)  # context lengths that `info` answers for, beside the one that is asked
READ = {"data", "tokenizer", "context_length", "experiment"}  # the settings that count here
MULTIPLE = 8  # in the names of the JSON, so whatever the default lengths are


def print_corpora(as_json: bool) -> None:
    """Every corpus of `conf/data` and of installed packages, on stdout."""
    rows = list_corpora()
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("data=", no_wrap=True)
    table.add_column("what it is, licence")
    table.add_column("size", no_wrap=True)
    table.add_column("network", no_wrap=True)
    table.add_column("cached")
    for row in rows:
        about = escape(f"{row['description']} ({row['licence'] or 'no licence given'})")
        network = "no" if not row["network"] else "not now" if row["cached"] else "needed"
        table.add_row(row["name"], about, escape(row["size"]), network, escape(_cached(row["cached"])))
    Console().print(table)
    print(f"cached: as tokens of (vocabulary) in {visible(cache_dir())}")


def print_info(overrides: list[str], as_json: bool) -> None:
    """Sizes, splits, fingerprint and what lengths fit, on stdout. Raises UserError, RunError."""
    settings = _settings(overrides)
    facts = read_facts(settings["data"])
    fits = _all_fits(facts, settings["context_length"])
    if as_json:
        print(json.dumps(_as_data(facts, fits), indent=1))
    else:
        _print_facts(facts, fits)


def prepare_and_print(overrides: list[str]) -> None:
    """Fetch and tokenise the corpus that the overrides choose. Raises UserError, RunError."""
    settings = _settings(overrides)
    data, tokenizer = settings["data"], settings["tokenizer"]
    facts = read_facts(data)
    fits = _all_fits(facts, settings["context_length"])
    stores = [prepare(data, tokenizer, facts=facts)]
    if stores[0].tokenizer["name"] != ByteTokenizer.name:  # the trigram beside fixed-target reads bytes
        stores.append(prepare(data, {"name": ByteTokenizer.name}, facts=facts))
    _print_facts(facts, fits)
    for name, store in zip((tokenizer["name"], ByteTokenizer.name), stores, strict=False):
        _say_store(name, store, facts)
    empty = [name for name in SPLITS if not facts.documents[name]]
    if empty:
        words = f"the {' and '.join(empty)} split{'s are' if len(empty) > 1 else ' is'} empty"
        say(f"{words}: posenc train refuses this corpus as it is")
    else:
        say("training and evaluation on it with this tokenizer need no network now")


def _say_store(name: str, store: TokenStore, facts: CorpusFacts) -> None:
    count = len(store.tokens)
    each = sum(facts.bytes.values()) / max(1, count)
    size = store.tokens.nbytes + (0 if store.token_bytes is None else store.token_bytes.nbytes)
    say(f"tokenised: {count:,} tokens of {name}, {each:.2f} bytes each, {size / 1e6:,.1f} MB in")
    say(f"  {entry_of(facts.fingerprint, store.tokenizer)}")


def _settings(overrides: list[str]) -> dict[str, Any]:
    from posenc.config.checks import whole  # imports torch

    refuse_unknown_flags("data", overrides)
    line = parse(overrides)
    refuse_others(line, READ, "is nothing that the corpus depends on")
    if line.asks_hydra or line.multirun:
        flag = "-m" if line.multirun else "--cfg"
        raise UserError(
            "data", None, f"takes one corpus at a time, and no {flag}", hint="--config-dir is taken"
        )
    settings = compose_jobs("train", line).jobs[0].settings
    return {**settings, "context_length": whole("context_length", settings["context_length"], least=2)}


def _cached(rows: list[dict[str, Any]]) -> str:
    names = [
        row["tokenizer"]
        if row["tokenizer"] == ByteTokenizer.name
        else f"{row['tokenizer']} ({row['vocab_size']})"
        for row in rows
    ]
    return ", ".join(dict.fromkeys(names)) or "-"


def _as_data(facts: CorpusFacts, fits: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": facts.name,
        "fingerprint": facts.fingerprint,
        "identity": facts.identity,
        "splits": {
            split: {"documents": count, "bytes": facts.bytes[split], "longest": facts.longest[split]}
            for split, count in facts.documents.items()
        },
        "lengths": fits,
        "cached": cached_of(facts.data),
    }


def _all_fits(facts: CorpusFacts, asked: int) -> list[dict[str, Any]]:
    return [_fits(facts, length) for length in sorted({*LENGTHS, asked})]


def _fits(facts: CorpusFacts, length: int) -> dict[str, Any]:
    """What a context length (bytes) can do here."""
    longest = max(0, facts.longest["test"] - 1)  # the byte after a window is its last target
    multiple = 2 ** ((longest // length).bit_length() - 1) if longest >= length else None
    return {
        "context_length": length,
        "train_documents": facts.reaching("train", length),
        "test_documents": facts.reaching("test", length),
        f"test_documents_{MULTIPLE}x": facts.reaching("test", MULTIPLE * length),
        "longest_multiple": multiple,
        "longest_window": None if multiple is None else multiple * length,
    }


def _print_facts(facts: CorpusFacts, fits: list[dict[str, Any]]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    table = Table(escape(facts.name), box=None, pad_edge=False)
    for name in ("documents", "bytes", "longest"):
        table.add_column(name, justify="right")
    for split, count in facts.documents.items():
        table.add_row(split, f"{count:,}", f"{facts.bytes[split]:,}", f"{facts.longest[split]:,}")
    Console().print(table)
    console.print(f"fingerprint {facts.fingerprint}")
    console.print()
    table = Table(box=None, pad_edge=False)
    for name in (
        "context_length",
        "training documents",
        f"test documents at 1x, {MULTIPLE}x",
        "longest that fits",
    ):
        table.add_column(name, justify="right")
    for row in fits:
        tests = f"{row['test_documents']:,}, {row[f'test_documents_{MULTIPLE}x']:,}"
        longest = (
            "none"
            if row["longest_multiple"] is None
            else (f"{row['longest_multiple']:,}x = {row['longest_window']:,}")
        )
        table.add_row(str(row["context_length"]), f"{row['train_documents']:,}", tests, longest)
    Console().print(table)
    reach = max(0, facts.longest["test"] - 1)
    console.print(f"documents that hold such a window, in bytes; the longest window of all is {reach:,}")
    console.print("a token of another tokenizer stands for several bytes, so fewer fit")

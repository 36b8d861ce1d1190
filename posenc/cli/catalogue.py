"""What there is: `posenc encodings`, from the classes themselves; `posenc data`, corpora and their tokens."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from posenc.config.overrides import CommandLine, refuse_others, value_text
from posenc.core.console import say
from posenc.core.errors import visible
from posenc.core.paths import cache_dir
from posenc.core.signature import parameters_of
from posenc.data import CorpusFacts, corpus_notes, list_corpora, prepare, read_facts
from posenc.data.corpus import BYTES
from posenc.data.token_cache import entry_of
from posenc.encodings.registry import default_parameters, encoding_class, list_encodings
from posenc.report.terminal import terminal_width
from posenc.settings.tree import RunSettings

# Where an encoding acts, in the order of a forward pass, and in words.
PLACES = {
    "nothing": "nothing: order comes from the causal mask",
    "embed": "embed: a vector for each position, met with the residual stream",
    "rotate": "rotate: queries and keys made to depend on their positions",
    "bias": "bias: added to the scores, by distance or positions alone",
    "scores": "scores: what is added depends on queries, keys or the text",
    "weights": "weights: another normalisation than the softmax",
    "mask": "mask: which keys are seen",
    "several": "several: several places, or made of several encodings",
}
TOLD = ("acts_on", "formula", "past_training", "paper", "revision", "prefix_stable", "relative", "decouples")
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)  # context lengths that `info` answers for
READ = {"data", "tokenizer", "context_length", "experiment"}
MULTIPLE = 8  # in the names of the JSON, so whatever the default lengths are


def entry(name: str, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return what is known of one encoding, as plain JSON. Raises UserError for an unknown name."""
    cls = encoding_class(name, plugins)
    return {
        "name": name,
        **{key: getattr(cls, key) for key in TOLD},
        "learned_parameters": cls.learned,
        "parameters": default_parameters(name),
        "without_default": sorted(set(parameters_of(cls)) - set(default_parameters(name))),
        "refuses": dict(cls.refuses),
        "description": (sys.modules[cls.__module__].__doc__ or "").strip(),
    }


def print_catalogue(name: str | None, *, as_json: bool, plugins: Sequence[str] = ()) -> None:
    """Print all encodings as a table grouped by where they act, or one of them in full."""
    entries = [entry(one, plugins) for one in ([name] if name else list_encodings(plugins))]
    if as_json:
        print(json.dumps(entries[0] if name else entries, indent=2, ensure_ascii=False))
    elif name:
        _print_one(entries[0])
    else:
        _print_all(entries)


def _print_all(entries: Sequence[dict[str, Any]]) -> None:
    console = Console()
    names = max(len(one["name"]) for one in entries)
    for place in [*PLACES, *sorted({one["acts_on"] for one in entries} - set(PLACES))]:
        group = [one for one in entries if one["acts_on"] == place]
        if not group:
            continue
        console.print(f"\n[bold]{escape(PLACES.get(place, place))}[/bold]")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(min_width=names)
        table.add_column()
        for one in group:
            table.add_row(one["name"], escape(one["formula"]))
            table.add_row("", f"[dim]past T: {escape(one['past_training'])}[/dim]")
        console.print(Padding(table, (0, 0, 0, 2)))
    console.print(
        "\nposenc encodings NAME: paper, parameters, departures. posenc show encoding=NAME: pictures."
        "\nWith any: positions=randomized|offset|pose; attention.window=W, attention.scale=logn|ssmax."
    )


def _print_one(one: dict[str, Any]) -> None:
    console, width = Console(highlight=False, markup=False, emoji=False), terminal_width()
    settings = [f"encoding.{key}={value_text(value)}" for key, value in one["parameters"].items()]
    settings += [f"encoding.{key}: needed, without a default" for key in one["without_default"]]
    learned = {None: "not declared", "0": "none"}.get(one["learned_parameters"])
    legend = "(T training length, d model width, D head width, H heads, L layers)"
    sections = {
        "What it is": one["description"].splitlines(),
        "Paper": [one["paper"]],
        "Settings and defaults": settings or ["none"],
        "Learned parameters": [learned or f"{one['learned_parameters']}   {legend}"],
        "Past the training length T": [one["past_training"]],
        "Refused with it": [f"{key}: {why}" for key, why in one["refuses"].items()],
    }
    console.print(Text(f"{one['name']}  (acts on: {one['acts_on']})", style="bold"))
    for title, lines in sections.items():
        if lines:
            console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            margin = "  " + line[: len(line) - len(line.lstrip())]
            print(textwrap.fill(line.strip(), width, initial_indent=margin, subsequent_indent=margin))


# --- corpora


def print_corpora(as_json: bool) -> None:
    """Print every corpus of `conf/data` and of installed packages."""
    rows = list_corpora()
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("data=", "what it is, licence", "size", "network"):
        table.add_column(name, no_wrap=name in ("data=", "size", "network"))
    for row in rows:
        about = f"{row.description} ({row.licence or 'no licence given'})"
        network = "no"
        if row.network:
            network = "cached" if row.cached else "needed"
        table.add_row(*map(escape, (row.name, about, row.size, network)))
    Console().print(table)
    print(f"cache: {visible(cache_dir())}")


def print_info(line: CommandLine, as_json: bool) -> None:
    """Print sizes, splits, fingerprint and what lengths fit. Raises UserError, RunError."""
    settings = _settings(line)
    _print_facts(read_facts(settings.data), settings.context_length, as_json)


def prepare_and_print(line: CommandLine) -> None:
    """Fetch and tokenise the corpus that the overrides choose. Raises UserError, RunError."""
    settings = _settings(line)
    facts = read_facts(settings.data)
    _print_facts(facts, settings.context_length)
    # the trigram beside fixed-target reads bytes
    tokenizers = {tokenizer.name: tokenizer for tokenizer in (BYTES, settings.tokenizer)}
    for name, tokenizer in tokenizers.items():
        store = prepare(settings.data, tokenizer, facts=facts)
        count, size = len(store.tokens), sum(map(sum, facts.sizes.values()))
        say(f"tokenised: {count:,} tokens of {name}, {size / count:.2f} bytes each, in")
        say(f"  {entry_of(facts.fingerprint, store.tokenizer)}")
    say("training and evaluation on it with this tokenizer need no network now")


def _settings(line: CommandLine) -> RunSettings:
    from posenc.config.compose import compose_one

    refuse_others(line, READ, "the corpus")
    settings: RunSettings = compose_one("train", line, "corpus").settings
    return settings


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

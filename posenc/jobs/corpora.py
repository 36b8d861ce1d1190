"""`posenc data`: which corpora there are, how large they are, and tokenising ahead."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from posenc.corpus import CorpusFacts, list_corpora, prepare, read_facts
from posenc.jobs.compose import compose_jobs, parse
from posenc.paths import conf_dir
from posenc.report.progress import say


def print_corpora() -> None:
    """Every corpus of `conf/data`, on stdout."""
    table = Table("data=", "what it is", box=None, pad_edge=False)
    for row in list_corpora(conf_dir()):
        table.add_row(row["name"], escape(row["description"]))
    Console().print(table)


def print_info(overrides: list[str]) -> None:
    """Documents, bytes and fingerprint of the chosen corpus. Raises UserError, RunError."""
    _print_facts(read_facts(_settings(overrides)["data"]))


def prepare_and_print(overrides: list[str]) -> None:
    """Fetch and tokenise the corpus that the overrides choose. Raises UserError, RunError."""
    settings = _settings(overrides)
    facts = read_facts(settings["data"])
    store = prepare(settings["data"], settings["tokenizer"], facts=facts)
    _print_facts(facts)
    say(f"tokenised: {len(store.tokens):,} tokens of {settings['tokenizer']['name']}")


def _settings(overrides: list[str]) -> dict[str, Any]:
    return compose_jobs("train", parse(overrides)).jobs[0].settings


def _print_facts(facts: CorpusFacts) -> None:
    table = Table(escape(facts.name), "documents", "bytes", "longest", box=None, pad_edge=False)
    for split, count in facts.documents.items():
        table.add_row(split, f"{count:,}", f"{facts.bytes[split]:,}", f"{facts.longest[split]:,}")
    Console().print(table)
    Console(soft_wrap=True).print(f"fingerprint {facts.fingerprint}", highlight=False)

"""Run `posenc data`: list corpora, show the sizes of one, fetch and tokenise it ahead of time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from posenc.cli.data_task import print_task
from posenc.config.keys_of_commands import KEYS_OF_DATA
from posenc.config.overrides import CommandLine, refuse_others
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import cache_dir
from posenc.core.plugins import import_plugins
from posenc.data import CorpusFacts, corpus_notes, list_corpora, prepare, read_facts
from posenc.data.catalogue import ListedCorpus
from posenc.data.corpus import BYTES
from posenc.data.corpus_checks import few_groups_note
from posenc.data.token_cache import entry_of
from posenc.evaluation.lengths import LONGEST_DEFAULT
from posenc.settings.tree import RunSettings

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)  # context lengths that `info` answers for


def print_corpora(as_json: bool) -> None:
    """Print every corpus of `conf/data` and of installed packages."""
    corpora: list[ListedCorpus] = []
    for listed in list_corpora():
        if isinstance(listed, UserError):
            say(f"left out: {listed.text()}")
        else:
            corpora.append(listed)
    if as_json:
        print(json.dumps([asdict(corpus) for corpus in corpora], indent=1))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("data=", no_wrap=True)
    table.add_column("what it is, licence")
    table.add_column("size", no_wrap=True)
    table.add_column("network", no_wrap=True)
    for corpus in corpora:
        about = f"{corpus.description} ({corpus.licence or 'no licence given'})"
        table.add_row(escape(corpus.name), escape(about), escape(corpus.size), _need_of_network(corpus))
    Console().print(table)
    print(f"cache: {visible(cache_dir())}")


def _need_of_network(corpus: ListedCorpus) -> str:
    """Return whether a corpus needs the network: no, needed, or not any more (cached)."""
    if not corpus.network:
        return "no"
    return "cached" if corpus.cached else "needed"


# --- one corpus


@dataclass(frozen=True)
class LengthFit:
    """Count the documents of a corpus that are longer than a context length, in bytes."""

    context_length: int
    train_documents: int
    test_documents: int
    test_documents_8x: int  # test documents longer than eight times the context length


def print_info(line: CommandLine, as_json: bool) -> None:
    """Print sizes, splits, fingerprint, and the documents of each length. Raises UserError, RunError."""
    settings = _settings(line)
    facts = read_facts(settings.data)
    if facts.task is not None:
        print_task(facts, facts.task, settings.context_length, as_json=as_json)
    elif as_json:
        print(json.dumps(_document(facts, settings.context_length), indent=1))
    else:
        _print_facts(facts, settings.context_length)


def prepare_corpus(line: CommandLine) -> None:
    """Fetch and tokenise the corpus that the overrides choose. Raises UserError, RunError."""
    settings = _settings(line)
    data = settings.data
    facts = read_facts(data)
    if facts.task is not None:
        say(f"{facts.name} is a task: its instances are drawn while training, and nothing is to be prepared")
        return
    _print_facts(facts, settings.context_length)
    # The tokens of all splits are written, so the bytes of all count.
    corpus_bytes = 0
    for sizes in facts.sizes.values():
        corpus_bytes += sum(sizes)
    tokenizers = [BYTES]
    if settings.tokenizer.name != "bytes":
        tokenizers.append(settings.tokenizer)
    for tokenizer in tokenizers:
        store = prepare(data, tokenizer, facts=facts)
        tokens = len(store.tokens)
        say(f"tokenised: {tokens:,} tokens of {tokenizer.name}, {corpus_bytes / tokens:.2f} bytes each, in")
        say(f"  {entry_of(facts.fingerprint, store.tokenizer)}")
    # That is what the command is for: compute nodes of a cluster often have no network.
    say("training and evaluation on it with this tokenizer need no network now")


def _settings(line: CommandLine) -> RunSettings:
    """Compose the settings of the corpus. Raises UserError, also for settings that have no effect on it."""
    from posenc.config.compose import compose_one  # imports Hydra, which `posenc data list` does not need

    refuse_others(line, KEYS_OF_DATA, "the corpus")
    settings = compose_one("train", line, "corpus").run_settings
    import_plugins(settings.plugins)  # one of them may hold the task
    return settings


def _document(facts: CorpusFacts, context_length: int) -> dict[str, Any]:
    """Return what `posenc data info --json` prints."""
    return {
        "name": facts.name,
        "fingerprint": facts.fingerprint,
        "identity": facts.identity,
        "splits": _splits(facts),
        "lengths": [asdict(fit) for fit in _length_fits(facts, context_length)],
        "notes": _notes(facts, context_length),
    }


def _splits(facts: CorpusFacts) -> dict[str, dict[str, int]]:
    """Return documents, bytes and the longest document of each split."""
    return {
        split: {"documents": len(sizes), "bytes": sum(sizes), "longest": max(sizes, default=0)}
        for split, sizes in facts.sizes.items()
    }


def _length_fits(facts: CorpusFacts, context_length: int) -> list[LengthFit]:
    """Count documents for each of LENGTHS and for the length of the settings."""
    train = facts.sizes["train"]
    test = facts.sizes["test"]
    return [
        LengthFit(
            context_length=length,
            train_documents=sum(size > length for size in train),
            test_documents=sum(size > length for size in test),
            # A window of W tokens needs W + 1 of them, since its last target is one more.
            test_documents_8x=sum(size > LONGEST_DEFAULT * length for size in test),
        )
        for length in sorted({*LENGTHS, context_length})
    ]


def _notes(facts: CorpusFacts, context_length: int) -> list[str]:
    longest = LONGEST_DEFAULT * context_length
    groups_note = few_groups_note(facts, "test", longest)
    notes = corpus_notes(facts, "test", longest, context_length)
    return notes if groups_note is None else [*notes, groups_note]


def _print_facts(facts: CorpusFacts, context_length: int) -> None:
    """Print a table of the splits, the notes, and a table of the lengths."""
    splits = Table(escape(facts.name), box=None, pad_edge=False)
    for head in ("documents", "bytes", "longest"):
        splits.add_column(head, justify="right")
    for split, sizes in _splits(facts).items():
        splits.add_row(split, *(f"{number:,}" for number in sizes.values()))
    lengths = Table(box=None, pad_edge=False)
    for head in ("context_length", "training documents", "test documents", "at 8x"):
        lengths.add_column(head, justify="right")
    for fit in _length_fits(facts, context_length):
        lengths.add_row(*(f"{number:,}" for number in asdict(fit).values()))
    console = Console(highlight=False)
    console.print(splits)
    for note in (f"fingerprint {facts.fingerprint}", *_notes(facts, context_length)):
        # A fingerprint that is broken over two lines could not be copied.
        console.print(escape(visible(note)), soft_wrap=True)
    console.print("", lengths)
    console.print("lengths in bytes; a token may stand for several bytes, so fewer documents fit")

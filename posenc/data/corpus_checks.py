"""Check whether a corpus has enough text for a run, and say what to know of it before training."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.errors import UserError, plural
from posenc.core.quantities import length_text
from posenc.data.corpus import CorpusFacts, document_ids, read_facts
from posenc.data.documents import SPLITS, groups_of
from posenc.data.tasks.instances import TaskInstances
from posenc.data.token_cache import TokenStore
from posenc.data.tokenizers import check_tokenizer
from posenc.results.statistics.documents import FEW_DOCUMENTS, MIN_DOCUMENTS, MIN_GROUPS
from posenc.settings.tree import DataSettings, TokenizerSettings

SMALL_SHARE = 0.5  # the user is told if windows reach at most this share of the training text


def inspect(
    data: DataSettings,
    tokenizer: TokenizerSettings,
    *,
    splits: Sequence[str],
    needed_tokens: int,
    context_length: int | None,
) -> CorpusFacts:
    """Check whether the corpus has enough text, as far as bytes tell, and return its facts. Raises UserError.

    `splits` are measured in windows of `needed_tokens`. With a `context_length` the corpus is trained on, and
    all splits must have documents, otherwise only `splits`. A document has at most as many tokens as bytes,
    so a corpus that is refused here would be too small in tokens, too.
    """
    check_tokenizer(tokenizer)
    # After the tokenizer, whose check reads nothing: to read a corpus may take minutes.
    facts = read_facts(data)
    if facts.task is not None:
        if data.plant is not None:
            raise UserError("data.plant", "given", f"is planted in text, and {facts.name} has none")
        _check_task(facts.task, tokenizer, context_length)
        return facts
    is_trained_on = context_length is not None
    for split in SPLITS if is_trained_on else splits:
        if not facts.sizes[split]:
            raise _empty_split(facts, split)
    if is_trained_on:
        # With some copies the user gets a note. With nothing but copies the loss would be that of training.
        _refuse_copies(facts, splits)
    check_lengths(facts, splits=splits, needed_tokens=needed_tokens, context_length=context_length)
    return facts


def _check_task(task: TaskInstances, tokenizer: TokenizerSettings, context_length: int | None) -> None:
    """Check that the smallest instance fits into a training window. Raises UserError."""
    name = task.task.name
    if tokenizer.name != "bytes":
        raise UserError(
            "tokenizer", tokenizer.name, f"data.task={name} has tokens of its own", allowed="bytes"
        )
    if context_length is not None:
        largest_instance(task, context_length)


def largest_instance(task: TaskInstances, context_length: int) -> int:
    """Return the size of the largest instance that fits into a training window.

    Raises UserError if none does, or if the task's alphabet ends before a window is full.
    """
    size = task.largest_size(context_length)
    if size is not None:
        return size
    name = task.task.name
    smallest = task.task.tokens(task.task.smallest)
    if context_length < smallest:
        hint = f"the smallest that works is {smallest}"
        raise UserError("context_length", context_length, f"no instance of {name} fits into it", hint=hint)
    largest = task.task.largest
    assert largest is not None
    problem = f"the alphabet of {name} ends before an instance fills it"
    hint = f"the largest that works is {task.task.tokens(largest)}"
    raise UserError("context_length", context_length, problem, hint=hint)


def _empty_split(facts: CorpusFacts, split: str) -> UserError:
    """Return the error for a split without documents."""
    counts = ", ".join(f"{name} {len(facts.sizes[name])}" for name in SPLITS)
    problem = f"the {split} split is empty (documents: {counts})"
    share = f"data.split.{split}" if split != "train" else "data.split"
    hint = f"splits hold whole documents: give more of them, or another share ({share})"
    return UserError("data", facts.name, problem, hint=hint)


def _refuse_copies(facts: CorpusFacts, splits: Sequence[str]) -> None:
    """Raise UserError for a split in which every document is a copy of a training document."""
    for split in splits:
        if facts.figures.copies.get(split) == len(facts.sizes[split]):
            problem = f"every document of the {split} split has the text of a training document"
            raise UserError("data", facts.name, problem, hint="give documents that differ")


def check_lengths(
    text: CorpusFacts | TokenStore, *, splits: Sequence[str], needed_tokens: int, context_length: int | None
) -> None:
    """Check that documents are long enough, exactly by tokens, or roughly by bytes. Raises UserError."""
    if text.task is not None:
        return
    unit = "tokens" if isinstance(text, TokenStore) else "bytes"
    if context_length is not None:
        # the last target of a window is one token behind its inputs
        _check_longest("context_length", text.sizes["train"], context_length + 1, "train", unit)
    for split in splits:
        _check_longest("eval.lengths", text.sizes[split], needed_tokens, split, unit, context_length)


def _check_longest(
    key: str, sizes: Sequence[int], needed: int, split: str, unit: str, context_length: int | None = None
) -> None:
    """Raise UserError if no document of a split has as many tokens (or bytes) as are needed.

    Lengths are said in multiples of a `context_length` as well, since users often set them so.
    """
    longest = max(sizes, default=0)
    if longest < needed:
        # The user sets inputs, so the numbers are one below the tokens that are needed.
        refused = "is that long"
        hint = f"the longest that works is {longest - 1}"
        if context_length is not None:
            refused += f" ({length_text((needed - 1) / context_length)})"
            whole_multiples = (longest - 1) // context_length
            hint += f", so {whole_multiples}x" if whole_multiples else ""
        problem = f"no document of the {split} split {refused}: the longest has {longest} {unit}"
        raise UserError(key, needed - 1, problem, hint=hint)


def corpus_notes(
    facts: CorpusFacts, split: str, window: int, context_length: int, store: TokenStore | None = None
) -> list[str]:
    """Return what to know of a corpus before training, a line each; in tokens if there is a `store`."""
    if facts.task is not None:
        return []
    sizes = facts.sizes if store is None else store.sizes
    unit = "bytes" if store is None else "tokens"
    notes = [
        *facts.notes,
        _short_documents_note(sizes["train"], context_length, unit),
        _few_documents_note(sizes[split], window, split, unit),
    ]
    return [note for note in notes if note]


def few_groups_note(facts: CorpusFacts, split: str, window: int) -> str | None:
    """Return a note if an interval counts documents as independent although they are of a few groups."""
    ids = document_ids(facts, split)
    groups = None if ids is None else groups_of(ids)
    if groups is None:
        return None
    sizes = facts.sizes[split]
    groups_of_long = [group for group, size in zip(groups, sizes, strict=True) if size > window]
    count = len(set(groups_of_long))
    # Where the documents are too few for an interval there is nothing to warn of.
    if count >= MIN_GROUPS or len(groups_of_long) < MIN_DOCUMENTS:
        return None
    return (
        f"the {split} documents longer than {window} bytes are of {plural(count, 'group')} (folders, books), "
        f"fewer than {MIN_GROUPS}: a 95% CI counts each document as independent, and is too narrow where the "
        "texts of a group are alike"
    )


def _short_documents_note(sizes: Sequence[int], context_length: int, unit: str) -> str | None:
    """Return a note if most of the training text is in documents that are shorter than a window."""
    fitting = [size for size in sizes if size > context_length]
    share = sum(fitting) / max(1, sum(sizes))
    if sum(fitting) > SMALL_SHARE * sum(sizes):
        return None
    verb = "is" if len(fitting) == 1 else "are"
    documents = plural(len(sizes), "training document")
    return (
        f"only {len(fitting):,} of {documents} {verb} longer than {context_length} {unit}, "
        f"{share:.0%} of the text: nothing else is trained on"
    )


def _few_documents_note(sizes: Sequence[int], window: int, split: str, unit: str) -> str | None:
    """Return a note if there are few documents for an interval."""
    count = sum(size > window for size in sizes)
    if count >= FEW_DOCUMENTS:
        return None
    verb = "is" if count == 1 else "are"
    interval = f"a 95% CI is rough below {FEW_DOCUMENTS}"
    if count < MIN_DOCUMENTS:
        interval = f"too few for a 95% CI, which needs {MIN_DOCUMENTS}"
    return f"{plural(count, f'{split} document')} {verb} longer than {window} {unit}: {interval}"

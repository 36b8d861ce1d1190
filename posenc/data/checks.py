"""Is a corpus large enough for what is asked of it? Roughly before it is tokenised, exactly after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posenc.core.errors import UserError
from posenc.data.documents import SPLITS
from posenc.data.facts import CorpusFacts, read_facts
from posenc.data.store import TokenStore
from posenc.data.tokenizer_choice import check_tokenizer

MOST = 0.5  # of the training text that windows are drawn from: of less it is said


def inspect(
    data: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    *,
    split: str,
    needed_tokens: int,
    context_length: int | None,
) -> CorpusFacts:
    """Everything about a corpus that can be checked without tokenising it.

    `split` is the one to be measured on, `needed_tokens` the longest window there + 1. A document has at
    most as many tokens as bytes, so what is refused here cannot work; `check_lengths` is the exact test.
    Without `context_length` nobody trains on it, and the other splits do not matter.
    Raises UserError for wrong settings, an empty split, a split that repeats the training text, or documents
    that are too short for `context_length` (training) or `eval.lengths` (`split`).
    """
    check_tokenizer(tokenizer)
    facts = read_facts(data)
    for each in SPLITS if context_length is not None else (split,):
        if not facts.documents[each]:
            counts = ", ".join(f"{name} {facts.documents[name]}" for name in SPLITS)
            raise UserError(
                "data",
                facts.name,
                f"the {each} split is empty (documents: {counts})",
                hint="splits hold whole documents, drawn by a hash of their names: give more files, "
                "one JSON line a chapter,\nor larger shares in data.split",
            )
    if context_length is not None and split in facts.repeats:
        raise UserError(
            "data",
            facts.name,
            f"every document of the {split} split holds the same text as one of the training split",
            hint="give documents that differ; copies of one are one",
        )
    unit = "tokens" if tokenizer["name"] == "bytes" else "bytes"
    _check(facts.longest, split, needed_tokens, context_length, unit)
    return facts


def check_lengths(store: TokenStore, *, split: str, needed_tokens: int, context_length: int | None) -> None:
    """The check of `inspect` again, exactly, in tokens. Raises UserError."""
    longest = {name: int(some.lengths.max(initial=0)) for name, some in store.splits.items()}
    _check(longest, split, needed_tokens, context_length, "tokens")


def left_out_of_training(store: TokenStore, context_length: int) -> str | None:
    """What to say where most of the training text is in documents that no window fits into; else None."""
    lengths = store.splits["train"].lengths
    fits = lengths > context_length
    share = int(lengths[fits].sum()) / max(1, int(lengths.sum()))
    if share > MOST:
        return None
    return (
        f"only {int(fits.sum()):,} of {len(lengths):,} training documents are longer than {context_length} "
        f"tokens, {share:.0%} of the text: nothing else is trained on"
    )


def _check(
    longest: Mapping[str, int], measured: str, needed_tokens: int, context_length: int | None, unit: str
) -> None:
    checks = [("eval.lengths", measured, needed_tokens)]
    if context_length is not None:  # a window of n inputs has n targets, one place further on
        checks.insert(0, ("context_length", "train", context_length + 1))
    for key, split, needed in checks:
        have = longest[split]
        if have < needed:
            raise UserError(
                key,
                needed - 1,
                f"no document of the {split} split is that long: the longest has {have} {unit}",
                hint=f"the longest that works is {have - 1}"
                + (" or less, as a token may stand for several bytes" if unit == "bytes" else ""),
            )

"""Choose the text that a finished model is measured on, and tell whether it was trained on its documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posenc.core.errors import UserError, plural, visible
from posenc.data import (
    CorpusFacts,
    TokenStore,
    absolute_data,
    asks_for_whole,
    inspect,
    is_measured_whole,
    is_of_the_user,
    is_task,
    measured_whole,
    named_data,
    training_texts,
)
from posenc.evaluation.resolve import Evaluation
from posenc.results.records import HEADLINE, UNIGRAM, Record
from posenc.settings.tree import DataSettings, RunSettings, SubjectSettings, TokenizerSettings


@dataclass(frozen=True)
class MeasuredText:
    """Hold a corpus to measure on."""

    data: DataSettings
    facts: CorpusFacts
    notes: tuple[str, ...] = ()  # what users should know about it


@dataclass(frozen=True, kw_only=True)
class TrainedOn:
    """Name the text that a run was trained on."""

    data: DataSettings
    fingerprint: str


def text_to_measure(
    data: DataSettings,
    tokenizer: TokenizerSettings,
    evaluation: Evaluation,
    *,
    keeps_split: bool,
    trained_on: TrainedOn | None = None,
) -> MeasuredText:
    """Return the text that `data=` names in an evaluation. Raises UserError if it is too short.

    All documents of the user's own files are measured, as nothing is trained on them. Only held-out documents
    are measured with `keeps_split`, or if the run was trained on some of them. `data.split.test=1` asks for
    all.
    """
    with_own_split = named_data(absolute_data(data))
    asks_for_all = asks_for_whole(with_own_split)
    measured = with_own_split
    # Corpora that come with posenc keep their test documents, since other models are measured on these.
    if asks_for_all or (is_of_the_user(with_own_split) and not keeps_split):
        measured = measured_whole(with_own_split)
    facts = _read_facts(measured, tokenizer, evaluation)
    if trained_on is None or facts.fingerprint == trained_on.fingerprint:
        return MeasuredText(measured, facts)
    if is_measured_whole(measured) and _was_trained_on(measured, facts, evaluation, trained_on):
        # The user has asked for all of it, so a part is not measured in its place.
        if asks_for_all:
            problem = "measures documents that this run was trained on"
            raise UserError("data.split.test", 1.0, problem, hint="without it the held-out ones are measured")
        measured = with_own_split
        facts = _read_facts(measured, tokenizer, evaluation)
    return MeasuredText(measured, facts, _notes_of_seen(facts, evaluation, trained_on))


def _read_facts(data: DataSettings, tokenizer: TokenizerSettings, evaluation: Evaluation) -> CorpusFacts:
    return inspect(
        data,
        tokenizer,
        splits=evaluation.splits,
        needed_tokens=evaluation.lengths.longest + 1,
        # Nothing is trained here, so no training document has to hold a window.
        context_length=None,
    )


def _was_trained_on(
    data: DataSettings, facts: CorpusFacts, evaluation: Evaluation, trained_on: TrainedOn
) -> bool:
    """Tell whether the run was trained on documents of a text, even if it was edited since."""
    paths = data.parameters.get("paths")
    has_same_paths = paths is not None and paths == trained_on.data.parameters.get("paths")
    return has_same_paths or _count_seen(facts, evaluation, trained_on) > 0


def _count_seen(facts: CorpusFacts, evaluation: Evaluation, trained_on: TrainedOn) -> int:
    """Count the documents to measure that the run was trained on, as far as its text is still cached."""
    # Documents are compared whole. One that was edited counts as new, so the note is a lower bound.
    trained_texts = training_texts(trained_on.fingerprint)
    measured = [document.text for document in facts.read() if document.split == evaluation.split]
    return sum(text in trained_texts for text in measured)


def _notes_of_seen(facts: CorpusFacts, evaluation: Evaluation, trained_on: TrainedOn) -> tuple[str, ...]:
    """Return a note on how many documents to measure the run was trained on. Raises UserError if on all."""
    is_own_text = facts.fingerprint == trained_on.fingerprint
    if is_own_text or not facts.text.is_loaded:  # of a corpus from the hub only the figures are cached
        return ()
    count = len(facts.sizes[evaluation.split])
    seen = _count_seen(facts, evaluation, trained_on)
    if seen == count:
        problem = "every document to measure is one that this run was trained on"
        raise UserError("data", facts.name, problem, hint="give documents that differ")
    if not seen:
        return ()
    return (f"{seen:,} of {plural(count, 'measured document')} were trained on: their loss is too low",)


# --- lines for the screen


def text_line(
    data: DataSettings, facts: CorpusFacts, split: str, settings: RunSettings | SubjectSettings
) -> str:
    """Return `trained on sympy; measured on files (texts): all 40 documents`."""
    count = len(facts.sizes[split])
    documents = f"its {plural(count, f'{split} document')}"
    if is_task(data):
        documents = f"its {split} instances"
    elif is_measured_whole(data):
        documents = f"all {plural(count, 'document')}"
    line = f"measured on {_name_with_place(data)}: {documents}"
    if isinstance(settings, RunSettings):  # nobody knows what other models were trained on
        line = f"trained on {_name_with_place(settings.data)}; {line}"
    elif "paths" in data.parameters and not is_measured_whole(data):
        line += " (set data.split.test=1 to measure all of it)"
    return visible(line)


def _name_with_place(data: DataSettings) -> str:
    """Return the name of a corpus, with its paths if it is the user's own, as all of those share a name."""
    paths = data.parameters.get("paths")
    if paths is None:
        return data.name
    first_path, *other_paths = [paths] if isinstance(paths, str) else list(paths)
    number_of_others = f" and {len(other_paths)} more" if other_paths else ""
    return f"{data.name} ({first_path}{number_of_others})"


def unigram_warning(records: Sequence[Record], store: TokenStore) -> str | None:
    """Return a warning if a model predicts a text at T no better than the frequencies of its tokens do."""
    unigram = None
    for record in records:
        if record["protocol"] == UNIGRAM:
            unigram = record
    if unigram is None or unigram["nats"] is None:
        return None
    losses = [
        record["nats"]
        for record in records
        if record["protocol"] == HEADLINE
        and record["targets_hash"] == unigram["targets_hash"]
        and record["window"] == unigram["window"]
        and record["extend"] is None
    ]
    # A loss that is not finite is stored as null.
    if not losses or losses[0] is None or losses[0] < unigram["nats"]:
        return None
    unit = "byte" if store.tokenizer["name"] == "bytes" else "token"
    return (
        f"warning: {losses[0]:.2f} nats/{unit} is no better than the frequencies of the text's {unit}s "
        f"({unigram['nats']:.2f}): the model cannot read this text"
    )

"""What a run is, as text: by it runs become seeds of one row, and rows of one ranking."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from posenc.core.paths import choice_file, load_yaml
from posenc.core.quantities import length_text
from posenc.results.measurements import Measurement, Member
from posenc.results.numbers import as_text, flat_texts
from posenc.results.records import Extend, TrainingText
from posenc.results.runs import Run, StoredSettings, encoding_name
from posenc.settings.base import Mark, earlier_values
from posenc.settings.tree import NONE, AttentionSettings, RunSettings, SubjectSettings

UNKNOWN = "unknown"
# Settings that any encoding can have: the word for each in a row's name, and the default, which is not named.
OPTIONS = {
    "attention.name": ("attention", "mha"),
    "attention.qk_norm": ("qk_norm", "false"),
    "attention.window": ("window", "null"),
    "attention.scale": ("scale", "none"),
    "attention.normalizer": ("normalizer", "softmax"),
    "attention.gate": ("gate", "none"),
    "attention.key_offset": ("key_offset", "false"),
    "attention.token_shift": ("token_shift", "false"),
    "attention.output_norm": ("output_norm", "false"),
    "positions.name": ("positions", "contiguous"),
}
UNKNOWN_SIZE = "{}"  # the size of a run whose settings cannot be read, as kind_of gives it
TARGET_SET = "target set"
# If one of these conditions differs, the targets differ because of it, so they are not named themselves.
CAUSES_OF_TARGETS = {"evaluated on", "split", "stride", "tokenizer", "context length"}
# Names of sizes among the conditions. A size that is not here has its dotted key as its name.
CONDITION_OF_SIZE = {
    "context_length": "context length",
    "train.tokens": "tokens trained",
    "data.name": "corpus",
    "tokenizer.name": "tokenizer",
}


# --- one run


def settings_of(run: Run) -> dict[str, str]:
    """Return the settings in which rows may differ, as text by dotted key (`encoding.base`).

    If the settings of a run cannot be read, they are those that its facts name.
    """
    if run.settings is not None:
        values = run.settings.row()
        if isinstance(run.settings, SubjectSettings) and run.settings.subject is not None:
            subject = run.settings.subject.plain()
            values |= {f"subject.{key}": value for key, value in subject.items() if key != "runs_dir"}
        return {key: as_text(value) for key, value in sorted(values.items())}
    facts: dict[str, Any] = {} if run.facts is None else dict(run.facts)
    tree: dict[str, Any] = {key: facts[key] for key in ("encoding", "attention", "positions") if key in facts}
    if "attention" in tree:
        # Facts of earlier runs lack some parameters. A later run with the value that all runs had then is a
        # seed of the same row, so this value is left out.
        earlier = earlier_values(AttentionSettings) | AttentionSettings.earlier_parameters
        attention = tree["attention"].items()
        tree["attention"] = {key: value for key, value in attention if (key, value) not in earlier.items()}
    if "precision" in facts:
        tree["train"] = {"precision": facts["precision"]}
    flat = flat_texts(tree)
    return {key: flat[key] for key in sorted(flat) if key != "encoding.name"}


def sizes_of(run: Run) -> dict[str, str] | None:
    """Return the model, corpus and lengths in the settings, as text by dotted key; None without settings.

    By them a run without numbers is recognised as a seed of a row.
    """
    if run.settings is None:
        return None
    return {key: as_text(value) for key, value in sorted(run.settings.sizes().items())}


def kind_of(run: Run, *, any_length: bool = False) -> tuple[str, str]:
    """Return two comparable texts: the encoding with its settings, and the sizes.

    `any_length` leaves T out of the sizes.
    """
    sizes = dict(sizes_of(run) or {})
    if any_length:
        sizes.pop("context_length", None)
    # As text, since settings are dictionaries, which have no hash and cannot be members of a set.
    settings = json.dumps([run.encoding, settings_of(run)], sort_keys=True)
    return settings, json.dumps(sizes, sort_keys=True)


def row_name(run: Run) -> str:
    """Return the name of a row. It is `trained_name` and, after another run's weights, the tokens since."""
    settings = run.settings
    if not isinstance(settings, RunSettings):
        return run.encoding or run.name
    name = trained_name(settings)
    if settings.train.began is None:
        return name
    return f"{name} ({settings.train.tokens / 1e6:g}M tokens)"


def trained_name(settings: StoredSettings) -> str:
    """Return `rope+yarn` if it was trained with an extension, `rope -> nope` if it began with another run."""
    name = str(encoding_name(settings.encoding.plain()))
    if not isinstance(settings, RunSettings):
        return name
    if settings.extend.name != NONE:
        name = f"{name}+{settings.extend.name}"
    began = settings.train.began
    if began is None:
        return name
    return f"{began.encoding} -> {name}"


def tuned_rate(run: Run) -> str | None:
    """Return how its learning rate was chosen on validation documents; None if it was given."""
    if not isinstance(run.settings, RunSettings):
        return None
    return run.settings.train.tuned


def options_of(settings: Mapping[str, str]) -> list[str]:
    """Return the options that are not at their default: `window=16`, `positions=randomized`."""
    options = []
    for key, (word, default) in OPTIONS.items():
        value = settings.get(key, default)
        if value != default:
            options.append(f"{word}={value}")
    return options


def knob_words(extension: Mapping[str, Any] | Extend) -> list[str]:
    """Return an extension's knobs that differ from its YAML, such as `factor=4`, and which were tuned."""
    tuned = extension.get("tuned", [])
    path = choice_file("extend", str(extension["name"]))
    defaults = {} if path is None else flat_texts(load_yaml(path))
    left_out = {"name", "tuned", "tuned_on", "resolved", *tuned}
    knob_texts = []
    knobs = flat_texts(extension)
    # In the order of the YAML, so that a label does not depend on the order in which a record was stored.
    in_yaml = [key for key in defaults if key in knobs]
    not_in_yaml = [key for key in knobs if key not in defaults]
    for key in [*in_yaml, *not_in_yaml]:
        text = knobs[key]
        if key.split(".")[0] not in left_out and defaults.get(key) != text:
            knob_texts.append(f"{key}={text}")
    if tuned:
        knob_texts.append(f"(tuned: {', '.join(tuned)})")
    return knob_texts


# --- several runs


def differing(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys in which the mappings differ, sorted."""
    keys: set[str] = set()
    # Comparing all with the first row is enough: if two rows differ in a key, one of them differs from it.
    for row in rows[1:]:
        if row != rows[0]:
            keys |= {key for key, _ in row.items() ^ rows[0].items()}
    return sorted(keys)


def telling_sizes(run: Run, other: Run) -> dict[str, str]:
    """Return the sizes of a run in which the other run differs, by the names of conditions."""
    sizes = sizes_of(run) or {}
    other_sizes = sizes_of(other) or {}
    keys = differing([sizes, other_sizes])
    return {CONDITION_OF_SIZE.get(key, key): sizes[key] for key in keys if key in sizes}


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a member was trained and measured on. Rows that differ in one of these have tables of their own.

    With `--allow-mixed` they share one, and are ranked where they have the same T and the same targets.
    For a run without numbers only those are known that its settings name.
    """

    trained_on: str  # name of the corpus, and the beginning of its fingerprint
    planted: str | None = None  # what data.plant put into the training text
    tokenizer: str
    context_length: int  # T, tokens
    tokens_trained: int | str | None = None
    evaluated_on: str | None = None
    split: str | None = None
    stride: int | None = None
    evaluated_in: str | None = None  # precision
    model: str
    target_set: str | None = None

    def texts(self) -> dict[str, str]:
        """Return each condition as text, by its name in tables and JSON."""
        return {_key_of(field.name): as_text(getattr(self, field.name)) for field in fields(self)}


def _key_of(condition: str) -> str:
    """Return the name of a condition in tables and JSON, with spaces: `context length`."""
    return "corpus" if condition == "trained_on" else condition.replace("_", " ")


def planned_conditions(run: Run) -> Conditions | None:
    """Return the conditions that the settings of a run without numbers name; None without settings."""
    settings = run.settings
    if settings is None:
        return None
    return Conditions(
        # Without a fingerprint: the corpus of a run without numbers may never have been read.
        trained_on=settings.data.name,
        tokenizer=_tokenizer_text(settings.tokenizer.marked(Mark.SIZE)),
        context_length=settings.context_length,
        model=settings.model.name if isinstance(settings, RunSettings) else UNKNOWN,
    )


def condition_text(key: str, value: str) -> str:
    """Return a condition as text: `context length 64`. A set of targets has no key: `2000 targets to 8x`."""
    return value if key == TARGET_SET else f"{key} {value}"


def conditions_of(members: Sequence[Member]) -> list[Conditions]:
    """Return the conditions of each member. Texts for its model and its targets name what differs."""
    models = _model_texts(members)
    targets = _target_texts(members)
    corpus_names = _corpus_names(members)
    return [
        _conditions(member, models[index], targets[index], corpus_names)
        for index, member in enumerate(members)
    ]


def mixed_values(members: Sequence[Member]) -> list[dict[str, str]]:
    """Return, for each member, the conditions in which the members differ, as text by key."""
    return telling_texts(conditions_of(members))


def telling_texts(conditions: Sequence[Conditions]) -> list[dict[str, str]]:
    """Return, for each of several conditions, its values of the keys in which any two of them differ.

    All results have the same keys. The set of targets is left out if it differs because of another key.
    """
    texts = {distinct: distinct.texts() for distinct in set(conditions)}  # members share most of them
    keys = differing(list(texts.values()))
    if not CAUSES_OF_TARGETS.isdisjoint(keys):
        keys = [key for key in keys if key != TARGET_SET]
    return [{key: texts[row][key] for key in keys} for row in conditions]


def _corpus_names(members: Sequence[Member]) -> dict[str, str]:
    """Return a name for each text that was scored, by its fingerprint: the first one that a member has.

    One text may be scored under two names, as another path in `data=files`. It is still one text.
    """
    names: dict[str, str] = {}
    for member in members:
        measurement = member.measurements[0]
        names.setdefault(measurement.target_set.fingerprint, measurement.corpus)
    return names


def _conditions(member: Member, model: str, target_set: str, corpus_names: Mapping[str, str]) -> Conditions:
    """Return the conditions of a member, given the texts for its model and its targets.

    `corpus_names` has the name of each scored text, by its fingerprint.
    """
    run = member.run
    assert run.facts is not None  # a run without facts has no records, so no member with measurements
    trained = run.training_text
    first = member.measurements[0]
    targets = first.target_set
    return Conditions(
        trained_on=_trained_text(trained),
        planted=as_text(None if trained is None else trained.get("plant")),
        tokenizer=_tokenizer_text(run.facts.get("tokenizer", UNKNOWN)),
        context_length=run.facts["context_length"],
        tokens_trained=tokens_trained(member),
        evaluated_on=_evaluated_text(first, corpus_names[targets.fingerprint]),
        split=targets.split,
        stride=targets.stride,
        evaluated_in=first.precision or "its training's",
        model=model,
        target_set=target_set,
    )


def text_name(corpus_name: str, fingerprint: str) -> str:
    """Return how a text is told from others: two users' own files both have the name `files`."""
    return f"{corpus_name} {fingerprint[:12]}"


def _trained_text(trained: TrainingText | None) -> str:
    """Return the text that a model was trained on; `unknown unknown` for a model that was given."""
    if trained is None:
        return text_name(UNKNOWN, UNKNOWN)
    return text_name(trained["name"], trained["fingerprint"])


def _evaluated_text(measurement: Measurement, corpus_name: str) -> str:
    """Return the text that was scored, and what recall planted in it if that is not the training's plant."""
    text = text_name(corpus_name, measurement.target_set.fingerprint)
    if measurement.other_plant is None:
        return text
    return f"{text} with planted {measurement.other_plant}"


def _tokenizer_text(tokenizer: object) -> str:
    """Return a tokenizer as text: `bytes`, or `bpe vocab_size=4096`."""
    if not isinstance(tokenizer, dict):
        return as_text(tokenizer)
    parts = []
    for key, value in tokenizer.items():
        parts.append(as_text(value) if key == "name" else f"{key}={as_text(value)}")
    return " ".join(parts)


def _model_texts(members: Sequence[Member]) -> list[str]:
    """Return the name of each member's model, or if models of one name differ, the sizes that differ."""
    models = [flat_texts(member.run.model or {}) for member in members]
    keys = differing(models)
    # Sizes of two named models differ in nearly every key, and the name stands for all of them.
    if not keys or "name" in keys:
        return [model.get("name", UNKNOWN) for model in models]
    texts = []
    for model in models:
        sizes = [f"{key}={model.get(key)}" for key in keys]
        texts.append(" ".join(sizes))
    return texts


def _target_texts(members: Sequence[Member]) -> list[str]:
    """Return a text for the set of targets of each member: `2000 targets to 8x`.

    If two sets would have the same text, the hash of each set follows it.
    """
    measured: dict[str, list[Measurement]] = defaultdict(list)
    for member in members:
        measured[member.measurements[0].target_set.targets_hash] += member.measurements
    texts = {targets_hash: _extent_text(of_targets) for targets_hash, of_targets in measured.items()}
    counts = Counter(texts.values())
    texts_of_members = []
    for member in members:
        targets_hash = member.measurements[0].target_set.targets_hash
        text = texts[targets_hash]
        texts_of_members.append(text if counts[text] == 1 else f"{text} ({targets_hash[:8]})")
    return texts_of_members


def _extent_text(measured: Sequence[Measurement]) -> str:
    """Return `2000 targets to 8x`. The longest window is in it, since it decides what can be a target."""
    most_targets = max(measurement.targets for measurement in measured)
    longest = max(measurement.multiple for measurement in measured)
    return f"{most_targets} targets to {length_text(longest)}"


def tokens_trained(member: Member) -> int | str:
    """Return on how many tokens the measured checkpoint was trained, which need not be the last one."""
    return tokens_trained_at(member.run, member.measurements[0].step)


def tokens_trained_at(run: Run, step: int) -> int | str:
    """Return on how many tokens the checkpoint of a step was trained; UNKNOWN without facts."""
    if run.facts is None or "tokens" not in run.facts:
        return UNKNOWN
    tokens = run.facts["tokens"]
    # Every update has as many tokens (train.batch_tokens), so that a checkpoint has its share of them.
    steps = run.facts.get("steps", 0)
    if 0 < step < steps:
        return tokens * step // steps
    return tokens

"""Resolve the `eval` group: which protocols, windows and documents an evaluation measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir, load_yaml
from posenc.data import CorpusFacts, TokenStore, build_tokenizer, is_task
from posenc.data.tokenizers import Tokenizer
from posenc.evaluation.extensions import Extension, build_extension, resolve_extend
from posenc.evaluation.lengths import EvalLengths, resolve_lengths
from posenc.evaluation.models import MeasuredModel
from posenc.evaluation.protocols import find_protocol, protocol_names
from posenc.evaluation.protocols.base import MeasurementFacts, Protocol, ProtocolSettings
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.request import EvalRequest
from posenc.settings.errors import unknown_key, user_error
from posenc.settings.tree import (
    LONGEST_CONTEXT,
    NONE,
    DataSettings,
    EvalSettings,
    ExtendRequest,
    ExtendSettings,
    PlantSettings,
    TokenizerSettings,
)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A resolved evaluation: every protocol at every window, on the documents of one split."""

    settings: EvalSettings  # as config.yaml stores them
    lengths: EvalLengths
    protocols: tuple[Protocol[Any], ...]
    headline: FixedTarget  # its loss chooses the knobs of an extension; it need not be among `protocols`
    extend: ExtendSettings | None  # a test-time extension with its knobs; None: the model as trained
    tries: int  # how many values of the knobs to try on validation documents; 0: the knobs are not tuned

    @property
    def split(self) -> str:
        return self.settings.split

    @property
    def extension_name(self) -> str:
        """Return the name of the test-time extension; "none" for the model as trained."""
        return NONE if self.extend is None else self.extend.name

    @property
    def is_extended(self) -> bool:
        """Tell whether a test-time extension changes the model."""
        return self.extend is not None

    def extension_of(self, model: MeasuredModel) -> Extension | None:
        """Build the extension for a model. It may lack knobs that are to be tuned. Raises UserError."""
        if self.extend is None:
            return None
        return build_extension(self.extend.plain(), model, tune=self.tries > 0)

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits whose documents are read."""
        return ("validation", self.split) if self.tries else (self.split,)

    @property
    def protocol_names(self) -> list[str]:
        """Return the names of the protocols to measure."""
        return [protocol.name for protocol in self.protocols]

    @property
    def measures_headline(self) -> bool:
        """Tell whether fixed-target is among the protocols."""
        return FixedTarget.name in self.protocol_names

    @property
    def count_keys(self) -> list[str]:
        """Return, each once, the keys of `eval` that say how much is measured, such as `max_targets`."""
        return list(dict.fromkeys(protocol.count_key for protocol in self.protocols))

    @property
    def needs_tokenizer(self) -> bool:
        """Tell whether a protocol needs the tokenizer itself."""
        return any(protocol.needs_tokenizer for protocol in self.protocols)

    def check_tuning(self, hint: str = "") -> None:
        """Raise UserError if knobs are to be tuned, and there is no length by which they could be chosen."""
        if self.tries and not self.lengths.beyond_training:
            problem = "there is no length beyond context_length to choose by"
            raise UserError("extend.tune", True, problem, hint=hint)

    def request(
        self, store: TokenStore, plant: PlantSettings | None, seed: int, tokenizer: Tokenizer | None = None
    ) -> EvalRequest:
        """Return what the protocols make their plans from; `plant`: what was planted in the training text."""
        return EvalRequest(
            store=store,
            split=self.split,
            lengths=self.lengths,
            max_targets=self.settings.max_targets,
            plant=plant,
            seed=seed,
            tokenizer=tokenizer,
        )

    def check_text(
        self, *, facts: CorpusFacts, tokenizer: TokenizerSettings, plant: PlantSettings | None
    ) -> None:
        """Raise UserError if a protocol cannot measure this text as tokens of this tokenizer."""
        self.check_corpus(facts)
        measurement = MeasurementFacts(
            fingerprint=facts.fingerprint,
            tokenizer=tokenizer.name,
            split=self.split,
            plant=plant,
            lengths=self.lengths,
            max_targets=self.settings.max_targets,
        )
        for protocol in self.protocols:
            protocol.check_text(measurement)
        # To build a tokenizer may train it, which most protocols do not wait for.
        if self.needs_tokenizer:
            self.check_tokenizer(build_tokenizer(tokenizer, facts))

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise UserError if a protocol cannot write its words with this tokenizer."""
        for protocol in self.protocols:
            protocol.check_tokenizer(tokenizer)

    def check_corpus(self, facts: CorpusFacts) -> None:
        """Raise UserError for a protocol that scores text where the corpus is a task, or the reverse."""
        corpus_is_task = facts.task is not None
        for protocol in self.protocols:
            if protocol.of_tasks != corpus_is_task:
                raise _wrong_corpus_error(protocol)

    def check_given_model(self) -> None:
        """Raise UserError if a protocol needs a model that posenc trained."""
        for protocol in self.protocols:
            if protocol.reason_against_given_models is not None:
                raise UserError("eval.protocols", protocol.name, protocol.reason_against_given_models)

    def check_transformers_model(self) -> None:
        """Raise UserError if a protocol cannot measure a model of transformers."""
        for protocol in self.protocols:
            if protocol.reason_against_transformers is not None:
                raise UserError("eval.protocols", protocol.name, protocol.reason_against_transformers)


def _wrong_corpus_error(protocol: Protocol[Any]) -> UserError:
    """Return the error for a protocol that does not score this kind of corpus."""
    if protocol.of_tasks:
        hint = "data=task data.task=copy (docs/tasks.md)"
        return UserError("eval.protocols", protocol.name, "measures answers of a task, not text", hint=hint)
    problem = "measures text, and a task has none"
    allowed = [name for name in protocol_names() if find_protocol(name).of_tasks]
    return UserError("eval.protocols", protocol.name, problem, allowed=allowed)


def default_eval_settings() -> EvalSettings:
    """Return the `eval` group as `posenc train` has it without being told."""
    return EvalSettings.model_validate(load_yaml(conf_dir() / "eval" / "default.yaml"))


def suited_to(settings: EvalSettings, data: DataSettings) -> EvalSettings:
    """Return the settings; on a task, default protocols are replaced by those that score tasks."""
    has_default_protocols = settings.protocols == default_eval_settings().protocols
    # Protocols that the user chose are not replaced: `check_corpus` refuses them by name.
    if not is_task(data) or not has_default_protocols:
        return settings
    protocols_of_tasks = [name for name in protocol_names() if find_protocol(name).of_tasks]
    return settings.with_changes(protocols=protocols_of_tasks)


def resolve_evaluation(
    settings: EvalSettings, context_length: int, extend: ExtendRequest | None = None
) -> Evaluation:
    """Resolve the `eval` group, and the `extend` group of `posenc eval`. Raises UserError."""
    names = check_protocols(settings.protocols)
    parameters = check_parameters(settings.protocol_parameters)
    lengths = eval_lengths(settings, context_length)
    protocols = tuple(make_protocol(name, parameters) for name in names)
    # Knobs are chosen by fixed-target, whether the user wants its records or not.
    headline = make_protocol(FixedTarget.name, parameters)
    assert isinstance(headline, FixedTarget)
    tries = 0
    if extend is not None and extend.tune:
        tries = extend.tries
    # Without tuning, the headline may not be measured. Then its block need not fit into the windows.
    if tries:
        headline.check(lengths)
        if settings.split == "validation":
            hint = "report test documents: eval.split=test"
            problem = "would choose on the documents that it reports"
            raise UserError("extend.tune", True, problem, hint=hint)
    for protocol in protocols:
        protocol.check(lengths)
    # Of all protocols, so that a stored run says with which settings a further protocol would be measured.
    stored_settings = settings.plain() | parameters | {"protocols": names}
    return Evaluation(
        settings=EvalSettings(**stored_settings),
        lengths=lengths,
        protocols=protocols,
        headline=headline,
        extend=None if extend is None else _resolved_extension(extend),
        tries=tries,
    )


def _resolved_extension(extend: ExtendRequest) -> ExtendSettings | None:
    """Return a checked extension as records store it; None for `none`. Raises UserError."""
    resolved = resolve_extend({"name": extend.name, **extend.parameters})
    return None if resolved["name"] == NONE else ExtendSettings.model_validate(resolved)


def eval_lengths(settings: EvalSettings, context_length: int) -> EvalLengths:
    """Return the windows to measure, in tokens. Raises UserError.

    T is always among them, since every change of the loss is against the loss at T.
    """
    base_length = settings.base_for(context_length)
    windows = [*resolve_lengths(settings.lengths, base_length), context_length]
    lengths = EvalLengths.of(windows, context_length, base_length)
    if lengths.longest > LONGEST_CONTEXT:
        allowed = f"up to {LONGEST_CONTEXT} tokens"
        raise UserError("eval.lengths", lengths.longest, "too large", allowed=allowed)
    return lengths


def check_protocols(names: Iterable[str]) -> list[str]:
    """Return the names of protocols, each once. Raises UserError for unknown ones, and if there is none."""
    # Not a set, which would lose the order that the user chose for the tables.
    distinct = list(dict.fromkeys(names))
    for name in distinct:
        if name not in protocol_names():
            raise UserError("eval.protocols", name, "there is no such choice", allowed=protocol_names())
    if not distinct:
        raise UserError("eval.protocols", "[]", "no protocol to measure with", allowed=protocol_names())
    return distinct


def check_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the `eval` group that belong to protocols, checked by type. Raises UserError.

    Keys of protocols that are not measured are checked as well, so that a typo is found now.
    """
    # All files of protocols are imported here, so that a new protocol brings its keys along.
    types = [find_protocol(name).Settings for name in protocol_names()]
    keys: set[str] = set()
    for settings_type in types:
        keys.update(settings_type.model_fields)
    for key, value in parameters.items():
        if key not in keys:
            raise unknown_key(f"eval.{key}", value, sorted({*EvalSettings.model_fields} | keys))
    checked: dict[str, Any] = {}
    for settings_type in types:
        checked |= protocol_settings(settings_type, parameters).plain()
    return checked


def make_protocol(name: str, parameters: Mapping[str, Any]) -> Protocol[Any]:
    """Return a protocol with those of the parameters that it reads. Raises UserError."""
    protocol = find_protocol(name)
    return protocol(protocol_settings(protocol.Settings, parameters))


def protocol_settings(
    settings_type: type[ProtocolSettings], parameters: Mapping[str, Any]
) -> ProtocolSettings:
    """Return a protocol's settings, from the parameters of all protocols. Raises UserError."""
    fields = settings_type.model_fields
    # Each type refuses keys that it does not know, and the keys of all protocols come together.
    parameters_of_protocol = {key: value for key, value in parameters.items() if key in fields}
    try:
        return settings_type.model_validate(parameters_of_protocol)
    except ValidationError as error:
        raise user_error(error, settings_type, "eval") from error

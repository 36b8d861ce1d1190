"""The base class of a protocol: what is scored, how, by which settings, and what a table says about it.

A protocol is one file of this folder with one subclass of `Protocol`; commands, tables and settings find it
by walking the folder. `compare` and `report` read the class attributes, so the file of a protocol imports
no torch: forward passes are methods of the `EvalContext` that `measure` is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.request import EvalRequest, Plan
from posenc.evaluation.sums import LossSums
from posenc.results.records import UNIT
from posenc.settings.base import Settings as SettingsGroup

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext
    from posenc.settings.tree import PlantSettings

PlanT = TypeVar("PlanT", bound=Plan)


class ProtocolSettings(SettingsGroup):
    """The keys of the `eval` group that a protocol reads. Their values stand in conf/eval/default.yaml."""


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """What is known of a text, and of what will be scored on it, before it is tokenised."""

    fingerprint: str
    tokenizer: str  # its name
    split: str
    plant: PlantSettings | None
    lengths: EvalLengths
    max_targets: int


class Protocol(ABC, Generic[PlanT]):
    """One way to measure a model. An instance holds the settings of one evaluation."""

    name: ClassVar[str]  # as in `eval.protocols` and in records: the name of the file, with dashes
    title: ClassVar[str]  # what is scored, in a few words: a heading of the page
    explain: ClassVar[str]  # a line of `compare --explain`
    note: ClassVar[str | None] = None  # a line below the table of `compare --full`
    # what the changes of a table are due to, for the note below it
    in_longer_windows: ClassVar[str] = "the same targets see more text"
    unit: ClassVar[str] = UNIT
    sample_noun: ClassVar[str] = "document"  # what the interval of one seed covers
    of_tasks: ClassVar[bool] = False  # whether it scores answers of a task; all others score text
    writes_words: ClassVar[bool] = False  # whether a plan needs the tokenizer itself
    refuses_given: ClassVar[str | None] = None  # why models that posenc did not train are refused
    refuses_transformers: ClassVar[str | None] = None  # why models of transformers are refused

    Settings: ClassVar[type[ProtocolSettings]] = ProtocolSettings  # the type of this protocol's settings

    def __init__(self, settings: ProtocolSettings) -> None:
        self.settings = settings

    def check(self, lengths: EvalLengths) -> None:
        """Raise UserError if the settings do not fit these windows."""

    def check_text(self, text: TextFacts) -> None:
        """Raise UserError if this text cannot be measured by these settings."""

    def windows(self, lengths: EvalLengths) -> Sequence[int]:
        """Return the windows to measure at: all, unless a protocol says otherwise."""
        return lengths.windows

    @abstractmethod
    def plan(self, request: EvalRequest) -> PlanT:
        """Choose the tokens to score without the model, so that all models are scored on the same ones."""

    @abstractmethod
    def measure(self, context: EvalContext, plan: PlanT, window: int) -> LossSums:
        """Score the plan's tokens in windows of `window` tokens. Raises NotApplicableError."""

    def unit_of(self, plan: PlanT) -> str:
        """Return the unit of the record's `nats`; a protocol may add a number of its plan, such as chance."""
        return self.unit

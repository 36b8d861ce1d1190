"""The base class of a protocol: what it scores, its settings, and the words that tables use for it.

A protocol is one file of this folder with one subclass of `Protocol`. Commands, tables and settings find it
by walking the folder. `compare` and `report` read the class attributes without importing torch, so that the
file of a protocol imports none: forward passes are methods of the `EvalContext` that `measure` takes.
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
from posenc.settings.base import Settings

if TYPE_CHECKING:
    from posenc.data.tokenizers import Tokenizer
    from posenc.evaluation.passes import EvalContext
    from posenc.settings.tree import PlantSettings

PlanT = TypeVar("PlanT", bound=Plan)


class ProtocolSettings(Settings):
    """The keys of the `eval` group that a protocol reads. Their defaults are in conf/eval/default.yaml."""


@dataclass(frozen=True, kw_only=True)
class MeasurementFacts:
    """What is known of a measurement before its text is tokenised: the text, the windows, the targets."""

    fingerprint: str  # hash of the corpus
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
    # the end of "the change when ..." in the note below a table: what differs between its columns
    why_loss_changes: ClassVar[str] = "the same targets see more text"
    unit: ClassVar[str] = UNIT
    sample_noun: ClassVar[str] = "document"  # whose scatter gives the interval of a single seed
    of_tasks: ClassVar[bool] = False  # True: it scores answers of a task; False: it scores text
    needs_tokenizer: ClassVar[bool] = False  # True: `plan` writes words of its own into the text
    count_key: ClassVar[str] = "max_targets"  # the key of `eval` that says how much of a text it scores
    # why it cannot score models that posenc did not train, and why not those of transformers
    reason_against_given_models: ClassVar[str | None] = None
    reason_against_transformers: ClassVar[str | None] = None

    Settings: ClassVar[type[ProtocolSettings]] = ProtocolSettings  # the type of this protocol's settings

    def __init__(self, settings: ProtocolSettings) -> None:
        self.settings = settings

    # Not abstract: most protocols fit all windows and all texts.
    def check(self, lengths: EvalLengths) -> None:
        """Raise UserError if the settings do not fit these windows."""

    def check_text(self, facts: MeasurementFacts) -> None:
        """Raise UserError if a text cannot be measured by these settings."""

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise UserError if a protocol with `needs_tokenizer` cannot write its words with this one."""

    def windows(self, lengths: EvalLengths) -> Sequence[int]:
        """Return the windows to measure at: all, unless a protocol overrides this."""
        return lengths.windows

    @abstractmethod
    def plan(self, request: EvalRequest) -> PlanT:
        """Choose which tokens are scored.

        The model is not consulted, so that all models are scored on the same tokens.
        """

    @abstractmethod
    def measure(self, context: EvalContext, plan: PlanT, window: int) -> LossSums:
        """Score the plan's tokens in windows of `window` tokens.

        Raises NotApplicableError if this window or this encoding cannot be measured. Its message becomes the
        note of the record.
        """

    def unit_of(self, plan: PlanT) -> str:
        """Return the unit of the record's `nats`. It may say more of the plan, such as the loss at chance."""
        return self.unit

"""The tree of settings: everything that `posenc train` and `posenc eval` take, with type, bounds and mark.

`RunSettings` is what a run's config.yaml holds. Values have no default here: each has its home, with its
comment, in `conf/`. The few fields with a default are not for users; posenc fills them in.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import ConfigDict, Discriminator, Tag

from posenc.settings.base import (
    Choice,
    Mark,
    Settings,
    defines_run,
    filled_in,
    flattened,
    free,
    per_seed,
    size,
)
from posenc.settings.numbers import (
    CountingNumber,
    Flag,
    NonNegative,
    Number,
    Positive,
    Share,
    Text,
    Whole,
)

SCHEMA_VERSION = 2  # of config.yaml and results.json; 1 was never released
NONE = "none"  # the choice of no extension, no tracker

# Upper limits, so that a typo, or a stranger's file, fails at once instead of after an hour.
LONGEST_CONTEXT = 2**24  # tokens, for training and evaluation
LARGEST_BATCH = 2**26  # tokens in one update, held in memory at once
LARGEST_TRAINING = 10**15  # tokens
LARGEST_ALPHABET = 64  # tokens for cues

Length = Annotated[Whole, Ge(2), Le(LONGEST_CONTEXT)]  # tokens
Precision = Literal["auto", "fp32", "bf16"]


def _is_word(value: Any) -> str:
    """Choose the branch of `X | word` before it is checked, or a typo would give the errors of both."""
    return "word" if isinstance(value, str) else "value"


AutoOrBool = Annotated[
    Annotated[Literal["auto"], Tag("word")] | Annotated[Flag, Tag("value")], Discriminator(_is_word)
]
TunedOrRate = Annotated[
    Annotated[Literal["tuned"], Tag("word")] | Annotated[Positive, Tag("value")], Discriminator(_is_word)
]
AutoOrLength = Annotated[
    Annotated[Literal["auto"], Tag("word")] | Annotated[Length, Tag("value")], Discriminator(_is_word)
]
# Tokens, or a multiple of the training length such as `4x`. The evaluation resolves it.
TokensOrMultiple = Annotated[
    Annotated[str, Tag("word")] | Annotated[Whole, Tag("value")], Discriminator(_is_word)
]


class EncodingSettings(Choice):
    name: str = defines_run()


class PositionsSettings(Choice):
    name: str = defines_run()


class ExtendSettings(Choice):
    """A test-time extension. `none` is the model as trained."""

    name: str = defines_run()


class AttentionSettings(Choice):
    name: str = defines_run()
    window: CountingNumber | None = defines_run()  # keys
    scale: str = defines_run()


class ModelSettings(Settings):
    # a name is for people: a model of other sizes under the same name is another run all the same
    name: Text = free()
    d_model: Annotated[Whole, Ge(1), Le(10**6)] = size()
    n_layers: Annotated[Whole, Ge(1), Le(1000)] = size()
    n_heads: Annotated[Whole, Ge(1), Le(10**6)] = size()
    mlp_ratio: Annotated[Whole, Ge(1), Le(1000)] = size()
    short_conv: Annotated[Whole, Ge(1), Le(64)] | None = size()  # tokens


class PlantSettings(Settings):
    """Key-value pairs that are planted in training windows."""

    share: Share = size()  # of the windows of a batch
    pairs: CountingNumber = size()  # in such a window
    cue: Literal[1, 2] = size()  # tokens before a value
    alphabet: Annotated[Whole, Ge(2), Le(LARGEST_ALPHABET)] = (
        size()
    )  # tokens for cues, and as many for values
    weight: Positive = size()  # of a value that can be known, in the loss


class DataSettings(Choice):
    """A corpus. It defines a run by its text, whose fingerprint the corpus gives, not by these settings."""

    name: str = free()
    plant: PlantSettings | None = None


class TokenizerSettings(Choice):
    name: str = size()

    def marked(self, *marks: Mark) -> dict[str, Any]:
        """Return name and parameters, without the path: a file may lie anywhere."""
        values = super().marked(*marks)
        values.pop("path", None)
        return values


class OptimSettings(Settings):
    name: Literal["adamw", "muon"] = defines_run()
    beta1: Annotated[Number, Ge(0), Le(0.9999)] = defines_run()
    beta2: Annotated[Number, Ge(0), Le(0.99999)] = defines_run()
    eps: Positive = defines_run()
    weight_decay: NonNegative = defines_run()
    grad_clip: Positive = defines_run()
    warmup_fraction: Annotated[Number, Ge(0), Le(1)] = defines_run()
    final_lr_fraction: Annotated[Number, Ge(0), Le(1)] = defines_run()


class InitialWeights(Settings):
    """The run that `train.init` began with. posenc fills it in."""

    encoding: str = defines_run()
    context_length: Length = defines_run()
    tokens: Whole = defines_run()
    run: str = per_seed()  # its hash
    step: Whole = defines_run()


# A stage of growing windows: its share of the tokens, and the length of its windows.
Stage = tuple[Share, Annotated[Whole, Ge(2)]]


class TrainSettings(Settings):
    tokens: Annotated[Whole, Ge(1), Le(LARGEST_TRAINING)] = size()
    batch_tokens: Annotated[Whole, Ge(1), Le(LARGEST_BATCH)] = defines_run()
    lr: TunedOrRate = defines_run()
    # a path may change; the weights that it leads to define the run, and `began` has those
    init: Text | None = free()
    length_schedule: Annotated[list[Stage], MinLen(1)] | None = defines_run()
    precision: Precision = defines_run()
    # compiled sums differ in the last bits; a run may be continued with or without, so it stays the same run
    compile: AutoOrBool = free()
    checkpoint_seconds: NonNegative = free()
    log_every: CountingNumber = free()  # updates
    began: InitialWeights | None = filled_in()
    tuned: str | None = filled_in()  # how `lr=tuned` was chosen


class EvalSettings(Settings):
    """What is measured. Keys that belong to one protocol are plain data until that protocol checks them."""

    # all free: a model that is measured once more, at other lengths, is the same model
    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    lengths: list[TokensOrMultiple] = free()
    base_length: Length | None = free()
    protocols: list[str] = free()
    split: Literal["test", "validation"] = free()
    max_targets: CountingNumber = free()
    batch_tokens: CountingNumber = free()
    precision: Precision = free()

    @property
    def protocol_parameters(self) -> dict[str, Any]:
        """Return the keys that protocols declare, such as `stride` and `recall`."""
        return dict(self.model_extra or {})


class SweepSettings(Settings):
    jobs: CountingNumber | None = free()
    slots: CountingNumber = free()
    fail_fast: Flag = free()


class TrainSweepSettings(SweepSettings):
    also: list[str] = free()  # other experiments


class TrackingSettings(Choice):
    name: str = free()


class MeasuredSettings(Settings):
    """What every stored model has: trained by posenc, or given to it."""

    schema_version: Literal[2] = filled_in(SCHEMA_VERSION)
    encoding: EncodingSettings
    data: DataSettings
    tokenizer: TokenizerSettings
    context_length: Length = size()  # T, tokens
    eval: EvalSettings
    seed: Annotated[Whole, Ge(0)] = per_seed()
    experiment_name: Text = free()

    def row(self) -> dict[str, Any]:
        """Return, by dotted key, what tells the rows of a comparison apart, without the encoding's name."""
        values = flattened(self.marked(Mark.DEFINES))
        values.pop("encoding.name", None)
        return values

    def sizes(self) -> dict[str, Any]:
        """Return, by dotted key, what runs must share to stand in one ranking; of the corpus the name."""
        return {"data.name": self.data.name, **flattened(self.marked(Mark.SIZE))}


class RunSettings(MeasuredSettings):
    """Everything that `posenc train` takes: what config.yaml of a run holds."""

    # groups have no mark of their own: what is in them has
    attention: AttentionSettings
    positions: PositionsSettings
    extend: ExtendSettings
    model: ModelSettings
    optim: OptimSettings
    train: TrainSettings
    tracking: TrackingSettings
    # a run moves between machines, so neither its device nor its place is part of it
    device: Text = free()
    name: Text | None = free()
    runs_dir: Text = free()
    # the hash covers the code that plug-ins bring, not the names of their files
    plugins: list[str] = free()
    sweep: TrainSweepSettings | None = free(None)  # not stored: it is no part of a run

    def identity(self) -> dict[str, Any]:
        """Return what the run's hash covers, beside its corpus and the code of its encoding."""
        return self.marked(Mark.DEFINES, Mark.SIZE, Mark.SEED)

    def plain(self) -> dict[str, Any]:
        """Return the settings as config.yaml holds them, without `sweep`."""
        return self.model_dump(exclude={"sweep"})


class SubjectSettings(MeasuredSettings):
    """The settings of a model that posenc did not train but measured."""

    subject: Choice | None = None  # how `subject=hf` found it; None: it was given to posenc.evaluate
    precision: str = free("fp32")  # of its weights


class EvalOverrides(Settings):
    """The `eval` group of `posenc eval`: what is null is as the run was trained."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    lengths: list[TokensOrMultiple] | None
    base_length: Length | None
    protocols: list[str] | None
    split: Literal["test", "validation"] | None
    max_targets: CountingNumber | None
    batch_tokens: CountingNumber | None
    precision: Precision | None


class ExtendRequest(ExtendSettings):
    """The `extend` group of `posenc eval`, which may look for the knobs itself."""

    tune: Flag
    tries: CountingNumber


class EvalCommandSettings(Settings):
    """Everything that `posenc eval` takes."""

    run: Text | None
    context_length: AutoOrLength | None  # T of a subject
    device: Text
    plugins: list[str]
    subject: Choice | None = None  # a group without a choice is no key
    extend: ExtendRequest
    data: DataSettings | None = None
    tracking: TrackingSettings
    eval: EvalOverrides
    sweep: SweepSettings

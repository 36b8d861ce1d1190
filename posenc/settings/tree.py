"""Declare everything that `posenc train` and `posenc eval` take: the tree of settings, with bounds and marks.

`RunSettings` is what a run's config.yaml holds. Values have no default here: each has its home, with its
comment, in `conf/`. The few fields with a default are not for users; posenc fills them in.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import ConfigDict, Discriminator, Tag

from posenc.settings.base import (
    Choice,
    Mark,
    Settings,
    defines_run,
    defines_size,
    differs_by_seed,
    filled_in,
    flattened,
    free,
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
Split = Literal["test", "validation"]  # that a model may be measured on
OptimizerName = Literal["adamw", "muon"]


def _branch(value: Any) -> str:
    """Return the branch of a union of words and values that a value belongs to."""
    # chosen before anything is checked, or a typo would give the errors of both branches
    return "word" if isinstance(value, str) else "value"


AutoOrBool = Annotated[
    Annotated[Literal["auto"], Tag("word")] | Annotated[Flag, Tag("value")], Discriminator(_branch)
]
TunedOrRate = Annotated[
    Annotated[Literal["tuned"], Tag("word")] | Annotated[Positive, Tag("value")], Discriminator(_branch)
]
AutoOrCount = Annotated[
    Annotated[Literal["auto"], Tag("word")] | Annotated[CountingNumber, Tag("value")], Discriminator(_branch)
]
AutoOrLength = Annotated[
    Annotated[Literal["auto"], Tag("word")] | Annotated[Length, Tag("value")], Discriminator(_branch)
]
# Tokens, or a multiple of the training length such as `4x`. The evaluation resolves it.
TokensOrMultiple = Annotated[
    Annotated[str, Tag("word")] | Annotated[Whole, Tag("value")], Discriminator(_branch)
]


class EncodingSettings(Choice):
    name: str = defines_run()


class PositionsSettings(Choice):
    name: str = defines_run()


class ExtendSettings(Choice):
    """Hold the choice of a test-time extension; `none` leaves the model as trained."""

    name: str = defines_run()


# A word that the options of the attention check, since they alone know which there are.
OptionName = Any


class AttentionSettings(Choice):
    name: str = defines_run()
    window: CountingNumber | None = defines_run()  # keys
    scale: OptionName = defines_run()
    # runs that were stored before there was a choice do not name these
    normalizer: OptionName = defines_run("softmax")
    gate: OptionName = defines_run("none")
    key_offset: Flag = defines_run(False)
    token_shift: Flag = defines_run(False)
    output_norm: Flag = defines_run(False)

    # Parameters that stored runs may lack, and what these runs had. The hash of a run names such a parameter,
    # so `row` alone leaves it out.
    earlier_parameters: ClassVar[dict[str, Any]] = {"qk_norm": False}


class ModelSettings(Settings):
    # the name is for people: its sizes alone tell one model from another
    name: Text = free()
    d_model: Annotated[Whole, Ge(1), Le(10**6)] = defines_size()
    n_layers: Annotated[Whole, Ge(1), Le(1000)] = defines_size()
    n_heads: Annotated[Whole, Ge(1), Le(10**6)] = defines_size()
    mlp_ratio: Annotated[Whole, Ge(1), Le(1000)] = defines_size()
    short_conv: Annotated[Whole, Ge(1), Le(64)] | None = defines_size()  # tokens


class PlantSettings(Settings):
    """Describe the key-value pairs that are planted in training windows."""

    # posenc.data.plants knows which there are; runs that were stored before there was a choice do not name it
    kind: Text = defines_size("tokens")
    share: Share = defines_size()  # of the windows of a batch that have pairs
    pairs: CountingNumber = defines_size()  # pairs in such a window
    # tokens by which a pair is told from others; a kind may have further tokens around them
    cue: Annotated[Whole, Ge(1), Le(8)] = defines_size()
    # different keys; as many others are values
    alphabet: Annotated[Whole, Ge(2), Le(LARGEST_ALPHABET)] = defines_size()
    # weight in the loss of a value that the model can know
    weight: Positive = defines_size()


class DataSettings(Choice):
    """Hold the choice of a corpus. Its text, by its fingerprint, defines the run, not these settings."""

    name: str = free()
    plant: PlantSettings | None = None


class TokenizerSettings(Choice):
    name: str = defines_size()

    def marked(self, *marks: Mark) -> dict[str, Any]:
        """Return name and parameters without the path, as the same file may lie anywhere."""
        values = super().marked(*marks)
        values.pop("path", None)
        return values


class OptimSettings(Settings):
    name: OptimizerName = defines_run()
    beta1: Annotated[Number, Ge(0), Le(0.9999)] = defines_run()
    beta2: Annotated[Number, Ge(0), Le(0.99999)] = defines_run()
    eps: Positive = defines_run()
    weight_decay: NonNegative = defines_run()
    grad_clip: Positive = defines_run()
    warmup_fraction: Annotated[Number, Ge(0), Le(1)] = defines_run()
    final_lr_fraction: Annotated[Number, Ge(0), Le(1)] = defines_run()


class InitialWeights(Settings):
    """Describe the run that `train.init` began with. posenc fills it in."""

    encoding: str = defines_run()
    context_length: Length = defines_run()
    tokens: Whole = defines_run()
    run: str = differs_by_seed()  # its hash
    step: Whole = defines_run()


# A stage of growing windows: its share of the tokens, and the length of its windows in tokens.
StageShare = tuple[Share, Annotated[Whole, Ge(2)]]


class TrainSettings(Settings):
    tokens: Annotated[Whole, Ge(1), Le(LARGEST_TRAINING)] = defines_size()
    batch_tokens: Annotated[Whole, Ge(1), Le(LARGEST_BATCH)] = defines_run()
    lr: TunedOrRate = defines_run()
    # the path may change; what defines the run are the weights that it leads to, and `began` names those
    init: Text | None = free()
    length_schedule: Annotated[list[StageShare], MinLen(1)] | None = defines_run()
    precision: Precision = defines_run()
    # compiled sums differ in the last bits; a run may be continued with or without, so it stays the same run
    compile: AutoOrBool = free()
    # the same numbers, started at once; runs that were stored before there was a choice do not name it
    cuda_graph: AutoOrBool = free("auto")
    checkpoint_seconds: NonNegative = free()
    log_every: CountingNumber = free()  # updates
    # updates; earlier runs do not name it, and were not validated
    validate_every: AutoOrCount | None = free(None)
    began: InitialWeights | None = filled_in()
    tuned: str | None = filled_in()  # how `lr=tuned` was chosen


class EvalSettings(Settings):
    """Hold what is measured. Keys of a single protocol are plain data until that protocol checks them."""

    # all free: a model that is measured once more, at other lengths, is the same model
    model_config = ConfigDict(extra="allow")

    lengths: list[TokensOrMultiple] = free()
    base_length: Length | None = free()
    protocols: list[str] = free()
    split: Split = free()
    max_targets: CountingNumber = free()
    batch_tokens: CountingNumber = free()
    precision: Precision = free()

    @property
    def protocol_parameters(self) -> dict[str, Any]:
        """Return the keys that protocols declare, such as `stride` and `recall`."""
        return dict(self.model_extra or {})

    def base_for(self, context_length: int) -> int:
        """Return the length that `2x` is twice of: `base_length`, or else the model's T."""
        return context_length if self.base_length is None else self.base_length


class SweepSettings(Settings):
    jobs: CountingNumber | None = free()
    slots: AutoOrCount = free()
    fail_fast: Flag = free()


class TrainSweepSettings(SweepSettings):
    also: list[str] = free()  # other experiments


class TrackingSettings(Choice):
    name: str = free()


class MeasuredSettings(Settings):
    """Hold the settings that every measured model has, trained by posenc or given to it."""

    schema_version: Literal[2] = filled_in(SCHEMA_VERSION)
    encoding: EncodingSettings
    data: DataSettings
    tokenizer: TokenizerSettings
    context_length: Length = defines_size()  # T, tokens
    eval: EvalSettings
    seed: Annotated[Whole, Ge(0)] = differs_by_seed()
    experiment_name: Text = free()

    def row(self) -> dict[str, Any]:
        """Return, by dotted key, what defines a row of a comparison, without the encoding's name."""
        values = flattened(self.marked(Mark.DEFINES))
        values.pop("encoding.name", None)
        for name, earlier in AttentionSettings.earlier_parameters.items():
            key = f"attention.{name}"
            if values.get(key) == earlier:
                del values[key]
        return values

    def sizes(self) -> dict[str, Any]:
        """Return, by dotted key, the settings that runs must share to be ranked together.

        The corpus is compared by its name.
        """
        return {"data.name": self.data.name, **flattened(self.marked(Mark.SIZE))}


class RunSettings(MeasuredSettings):
    """Hold everything that `posenc train` takes, and a run's config.yaml stores."""

    # groups have no mark of their own: their fields have marks
    attention: AttentionSettings
    positions: PositionsSettings
    extend: ExtendSettings
    model: ModelSettings
    optim: OptimSettings
    train: TrainSettings
    tracking: TrackingSettings
    # a run moves between machines, so neither its device nor its folder is part of it
    device: Text = free()
    name: Text | None = free()
    runs_dir: Text = free()
    # the hash covers the code that plug-ins bring, not the names of their files
    plugins: list[str] = free()
    sweep: TrainSweepSettings | None = free(None)  # not stored, as it is no part of a run

    def hashed_settings(self) -> dict[str, Any]:
        """Return what the run's hash covers, beside its corpus and the code of its encoding."""
        return self.marked(Mark.DEFINES, Mark.SIZE, Mark.SEED)

    def plain(self) -> dict[str, Any]:
        """Return the settings as config.yaml holds them, without `sweep`."""
        return self.model_dump(exclude={"sweep"})


class SubjectSettings(MeasuredSettings):
    """Hold the settings of a model that posenc measured but did not train."""

    subject: Choice | None = None  # what `subject=hf` loaded; None if posenc.evaluate was given the model
    precision: str = free("fp32")  # precision of the weights


class EvalOverrides(Settings):
    """Hold the `eval` group of `posenc eval`. A null means the value that the run was trained with."""

    model_config = ConfigDict(extra="allow")

    lengths: list[TokensOrMultiple] | None
    base_length: Length | None
    protocols: list[str] | None
    split: Split | None
    max_targets: CountingNumber | None
    max_minutes: Positive | None
    batch_tokens: CountingNumber | None
    precision: Precision | None


class ExtendRequest(ExtendSettings):
    """Hold the `extend` group of `posenc eval`, with the search for the best parameters."""

    tune: Flag
    tries: CountingNumber


class EvalCommandSettings(Settings):
    """Hold everything that `posenc eval` takes."""

    run: Text | None
    context_length: AutoOrLength | None  # T of a subject
    device: Text
    plugins: list[str]
    subject: Choice | None = None  # Hydra leaves out a group without a choice
    extend: ExtendRequest
    data: DataSettings | None = None
    keeps_shares: Flag = filled_in(False)  # the user set data.split
    tracking: TrackingSettings
    eval: EvalOverrides
    sweep: SweepSettings

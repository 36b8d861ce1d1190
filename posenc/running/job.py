"""Define a job: the training and evaluation of a run, or an evaluation alone, validated and ready to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.data import CorpusFacts, Stage
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.resolve import Evaluation
from posenc.model.decoder import ModelShape
from posenc.running.initial_weights import InitialCheckpoint
from posenc.settings.tree import (
    DataSettings,
    RunSettings,
    SubjectSettings,
    TokenizerSettings,
    TrackingSettings,
)
from posenc.training.checkpoint import Writer
from posenc.training.optimizer import Optimization


@dataclass(frozen=True, kw_only=True)
class Training:
    """Hold what a job trains, in addition to its settings."""

    optimization: Optimization
    precision: str  # fp32 or bf16
    compile: bool
    cuda_graph: bool
    steps: int
    batch_windows: int  # of context_length tokens, in one update
    stages: tuple[Stage, ...]
    code: dict[str, Any]  # which code of the encoding and its options is trained; checkpoints keep it
    initial: InitialCheckpoint | None  # weights to begin with; None: they are drawn from the seed
    auto_precision: str | None  # what `auto` is on this machine, if the run was begun in the other precision


@dataclass(frozen=True, kw_only=True)
class Job:
    """Hold one validated unit of work."""

    directory: Path
    settings: RunSettings | SubjectSettings  # as config.yaml stores them
    settings_hash: str
    writer: Writer  # what its checkpoints say of the run that wrote them; empty for a given model
    data: DataSettings  # the corpus to measure on
    tokenizer: TokenizerSettings  # of the model
    tracking: TrackingSettings
    corpus_facts: CorpusFacts
    shape: ModelShape | None  # of a run's decoder; None for a given model
    block_weights: int | None  # of that decoder, without its embedding and encoding; None for a given model
    device: torch.device
    evaluation: Evaluation
    is_own_text: bool = True  # whether the model was trained on the corpus that it is measured on
    notes: tuple[str, ...] = ()  # lines that users should know about the corpus to measure on
    training: Training | None = None  # None: nothing is trained
    given_model: CallableModel | None = None  # a model that posenc did not train
    bytes_a_token: float | None = None  # in the text to measure, if it was measured

    @property
    def lock(self) -> str:
        """Return the name of the lock of the directory that it holds while it works."""
        # An evaluation of a run has its own lock, so that a run can be measured while it is trained. Nobody
        # trains a given model here.
        measures_a_run = self.training is None and self.given_model is None
        return "evaluation" if measures_a_run else "run"

    @property
    def run_shape(self) -> ModelShape:
        """Return the sizes of the decoder of a run."""
        # Only a given model has none, and whoever asks has told the two apart.
        assert self.shape is not None
        return self.shape

    @property
    def run_settings(self) -> RunSettings:
        """Return the settings of a run that posenc trains or trained."""
        assert isinstance(self.settings, RunSettings)
        return self.settings

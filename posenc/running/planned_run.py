"""Say which run settings make: its hash, its name, its directory, and what its checkpoints say of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posenc.core.errors import safe_name
from posenc.core.paths import expanded, is_folder
from posenc.data import CorpusFacts, build_tokenizer, is_task
from posenc.results.identity import trained_name
from posenc.settings.tree import RunSettings
from posenc.training.checkpoint import Writer


@dataclass(frozen=True)
class PlannedRun:
    """Hold what makes a run another one: its settings, its corpus and the code of its encoding."""

    settings: RunSettings
    facts: CorpusFacts
    code: dict[str, Any]

    @property
    def precision(self) -> str:
        """Return fp32 or bf16, in which it is trained."""
        return self.settings.train.precision

    @property
    def in_other_precision(self) -> PlannedRun:
        """Return the same run trained in fp32 if it is one in bf16, and the other way round."""
        precision = "fp32" if self.precision == "bf16" else "bf16"
        train = self.settings.train.with_changes(precision=precision)
        return replace(self, settings=self.settings.with_changes(train=train))

    @property
    def hash(self) -> str:
        """Return eight hex digits of what defines the run. Device, tracking, evaluation and names do not."""
        return run_hash(self.settings, self.facts, self.code)

    @property
    def directory(self) -> Path:
        """Return the directory of the run.

        A run that exists is found by its hash, whatever its name. Of several copies the one with the expected
        name counts.
        """
        folder = expanded(self.settings.runs_dir) / self.settings.experiment_name
        named = folder / f"{readable_name(self.settings)}-{self.hash}"
        if not is_folder(folder):
            return named
        existing = sorted(path for path in folder.glob(f"*-{self.hash}") if is_folder(path))
        # A run may have been renamed. The hash still says which one it is.
        if not existing or named in existing:
            return named
        return existing[0]


def run_hash(settings: RunSettings, facts: CorpusFacts, code: dict[str, Any]) -> str:
    """Return eight hex digits of what defines a run: marked settings, text, tokenizer, code."""
    hashed = settings.hashed_settings()
    # the file of `hf` may change under the same name; a bpe tokenizer follows from the corpus
    if settings.tokenizer.name == "hf":
        hashed["tokenizer"] = build_tokenizer(settings.tokenizer, facts).identity()
    hashed["corpus"] = facts.identity
    hashed["code"] = code
    # Another form of this text would give every run on a disk another name, and train it again.
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    # Eight digits: among 10,000 runs of one experiment two share them with a chance of one in a hundred.
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def writer_of(settings: RunSettings, settings_hash: str | None) -> Writer:
    """Return what a checkpoint says of the run that wrote it, as plain JSON.

    `settings_hash` also covers the text and the code. A reader that does not know it compares the settings.
    """
    # The settings stand there in full and not as a hash. So an error can name the setting that differs.
    hashed = settings.hashed_settings()
    return hashed if settings_hash is None else {"settings_hash": settings_hash, **hashed}


def readable_name(settings: RunSettings) -> str:
    """Return the part of a run's name that is for people: the user's own, or encoding, model, T and seed.

    A run of a task has the task's name before them.
    """
    if settings.name is not None:
        return settings.name
    # Of `rope -> nope`, a run that begins with another one's weights, safe_name would make `rope_-_nope`.
    encoding = safe_name(trained_name(settings).replace(" -> ", "-to-"))
    if is_task(settings.data):
        encoding = f"{safe_name(settings.data.name)}-{encoding}"
    model = safe_name(settings.model.name)
    return f"{encoding}-{model}-T{settings.context_length}-s{settings.seed}"

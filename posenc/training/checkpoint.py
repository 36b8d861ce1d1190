"""Write and read checkpoints: safetensors and JSON, and a manifest with the sha256 of every file.

A checkpoint is written whole or not at all.

checkpoints/step-NNNNNNNN/  model.safetensors  optimizer.safetensors  state.json  manifest.json
                            tokenizer.json where the tokenizer is more than bytes
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor

from posenc.core.atomic_files import (
    CONTINUES,
    cannot_write,
    check_room,
    renamed_when_whole,
    sha256_of_file,
)
from posenc.core.errors import RunError, first_few, first_line
from posenc.model.decoder import Decoder
from posenc.results.numbers import flat_texts
from posenc.training.distributed import current
from posenc.training.optimizer import AdamW

log = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2  # the newest one, and the one before it in case the newest is damaged
MADE_BY = "made_by"  # key in state.json: the circumstances of the training
BYTES_OF_RESULTS = 2**20  # about what records, metrics and logs take
NAME = re.compile(r"step-\d{8,}")
DIFFERENCES_NAMED = 4  # an error names at most so many settings in which two runs differ
# Errors which say that a file is gone or broken. Others, such as too many open files, do not say that.
DAMAGE_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO)


# What says which run wrote a checkpoint: its settings that are hashed, and their hash.
Writer = Mapping[str, Any]


class NonFiniteWeightsError(Exception):
    """The weights are not finite, so no checkpoint is written."""


class DamagedCheckpointError(Exception):
    """A checkpoint differs from what was written. The message says how."""


@dataclass(frozen=True)
class Provenance:
    """Where weights come from, as plain JSON. Every checkpoint holds it."""

    fingerprint: str  # of the text
    tokenizer: dict[str, Any]
    code: dict[str, Any]  # of the encoding and of the options that act on it
    writer: Writer  # a reader of the weights compares it

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Provenance:
        """Read what state.json says. Raises KeyError, TypeError or ValueError for what nobody wrote so."""
        writer = dict(state["run"])
        if "settings_hash" not in writer:
            raise KeyError("settings_hash")
        return cls(
            fingerprint=str(state["fingerprint"]),
            tokenizer=dict(state["tokenizer"]),
            code=dict(state["encoding"]),
            writer=writer,
        )

    def as_json(self) -> dict[str, Any]:
        """Return what state.json says."""
        return {
            "fingerprint": self.fingerprint,
            "tokenizer": self.tokenizer,
            "encoding": self.code,
            "run": self.writer,
        }

    @property
    def settings_hash(self) -> str:
        """Return the hash of the settings of the run."""
        return str(self.writer["settings_hash"])


@dataclass(frozen=True)
class CheckpointPlan:
    """Where checkpoints go, how often, and what each holds besides weights and moments."""

    folder: Path
    seconds: float  # between two checkpoints
    provenance: Provenance
    files: Mapping[str, str]  # texts by file name


@dataclass(frozen=True)
class TrainedSoFar:
    """How far a training has come."""

    step: int
    tokens: int
    seconds: float  # of steps, validations and checkpoints, by this process and those that it continues
    # nats per token, mean of the last tenth of the steps; after a resume there, of the steps since then
    final_loss: float | None

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> TrainedSoFar:
        """Read what state.json says. Raises KeyError, TypeError or ValueError for what nobody wrote so."""
        final_loss = state["final_loss"]
        return cls(
            step=int(state["step"]),
            tokens=int(state["tokens"]),
            seconds=float(state["seconds"]),
            final_loss=None if final_loss is None else float(final_loss),
        )


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk that was verified, and was written by the expected run.

    Weights are read only from one of these: those of another seed have the same names and shapes.
    """

    path: Path
    so_far: TrainedSoFar
    provenance: Provenance
    circumstances: dict[str, Any]  # what `circumstances_of` returned where it was written

    @property
    def step(self) -> int:
        """Return after which step the checkpoint was written."""
        return self.so_far.step


# --- Writing


def save_checkpoint(plan: CheckpointPlan, model: Decoder, optimizer: AdamW, so_far: TrainedSoFar) -> Path:
    """Write step-NNNNNNNN atomically, then drop all checkpoints except this one and the one before.

    Raises NonFiniteWeightsError, and RunError if the disk refuses.
    """
    weights = _weights_of(model)
    moments = _moments_of(model, optimizer)
    state = {**asdict(so_far), **plan.provenance.as_json(), MADE_BY: circumstances_of(model)}
    for name, weight in weights.items():
        if not torch.isfinite(weight).all():
            raise NonFiniteWeightsError(f"non-finite weights after step {so_far.step} ({name})")
    contents = {
        # As bytes, so that the manifest has the sha256 of what was meant, whatever the disk makes of it.
        "model.safetensors": serialize(weights),
        "optimizer.safetensors": serialize(moments),
        "state.json": json.dumps(state, indent=1).encode(),
        **{name: text.encode() for name, text in plan.files.items()},
    }
    manifest = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}
    contents["manifest.json"] = json.dumps(manifest, indent=1).encode()
    path = plan.folder / f"step-{so_far.step:08d}"
    try:
        # The lock of the run directory is held, so that the name is this process's own.
        with renamed_when_whole(_hidden(path), path):
            for name, content in contents.items():
                (_hidden(path) / name).write_bytes(content)
    except OSError as error:
        needed = sum(tensor.nbytes for tensor in (*weights.values(), *moments.values()))
        raise cannot_write(path, error, needed=needed, hint=CONTINUES) from error
    for old in checkpoint_paths(plan.folder)[:-CHECKPOINTS_KEPT]:
        _drop(old)
    return path


def _weights_of(model: Decoder) -> dict[str, Tensor]:
    # safetensors refuses tensors that are not contiguous
    return {name: weight.detach().cpu().contiguous() for name, weight in model.named_parameters()}


def _moments_of(model: Decoder, optimizer: AdamW) -> dict[str, Tensor]:
    """Return the optimizer's state by names such as `exp_avg/blocks.0.mlp.up.weight`."""
    moments = {}
    for name, parameter in model.named_parameters():
        for moment_name, moment in optimizer.state.get(parameter, {}).items():
            moments[f"{moment_name}/{name}"] = moment.detach().cpu().contiguous()
    return moments


def _hidden(path: Path) -> Path:
    """Return the name of a checkpoint that is only partly there, as drop_leftovers looks for it."""
    return path.with_name(f".tmp-{path.name}")


def _drop(path: Path) -> None:
    """Rename a checkpoint, then remove it, so that a kill in between does not leave half a checkpoint."""
    renamed = _hidden(path).with_name(f"{_hidden(path).name}-dropped")
    shutil.rmtree(renamed, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(renamed)
        shutil.rmtree(renamed)


def drop_leftovers(folder: Path) -> None:
    """Remove what killed saves and failed removals left."""
    for leftover in leftovers(folder):
        shutil.rmtree(leftover, ignore_errors=True)


def leftovers(folder: Path) -> list[Path]:
    """Return the folders of checkpoints that were only partly written or removed."""
    return list(folder.glob(".tmp-step-*"))


# --- Continuing


def resume(plan: CheckpointPlan, model: Decoder, optimizer: AdamW, steps: int) -> TrainedSoFar:
    """Load the newest intact checkpoint into model and optimizer. Without any checkpoint return step 0.

    Removes what killed saves left, and damaged checkpoints that are newer than the one it continues from.
    Raises RunError if another run wrote the checkpoint, if all are damaged, or if the disk has no room for
    the training.
    """
    drop_leftovers(plan.folder)
    checkpoint = newest_checkpoint(plan.folder, plan.provenance.writer)
    # A finished run writes no further checkpoint, so it can be loaded on a full disk, too.
    if checkpoint is None or checkpoint.step < steps:
        _check_room(plan.folder, model)
    if checkpoint is None:
        return TrainedSoFar(step=0, tokens=0, seconds=0.0, final_loss=None)
    load_weights(checkpoint, model)
    _load_moments(checkpoint.path, model, optimizer)
    # A save keeps the last two by number, so a damaged checkpoint that is newer would push a good one out.
    for path in checkpoint_paths(plan.folder):
        if step_of(path) > checkpoint.step:
            _drop(path)
    _warn_of_changes(checkpoint, model)
    return checkpoint.so_far


def _check_room(folder: Path, model: Decoder) -> None:
    """Raise RunError unless checkpoints and results fit. The room of old checkpoints counts as free."""
    weights_bytes = sum(parameter.nbytes for parameter in model.parameters())
    checkpoint_bytes = 3 * weights_bytes  # with two moments; Muon has one, and needs less
    old_bytes = 0
    for path in checkpoint_paths(folder):
        old_bytes += sum(file.stat().st_size for file in path.iterdir())
    count = CHECKPOINTS_KEPT + 1  # a new one is written before an old one is dropped
    needed = count * checkpoint_bytes + BYTES_OF_RESULTS - old_bytes
    check_room(folder, needed, f"{count} checkpoints and the results", hint=CONTINUES)


def _load_moments(path: Path, model: Decoder, optimizer: AdamW) -> None:
    """Load the optimizer's state, by the names of `_moments_of`."""
    parameters = dict(model.named_parameters())
    for key, moment in load_file(path / "optimizer.safetensors").items():
        moment_name, parameter_name = key.split("/", 1)
        parameter = parameters[parameter_name]
        optimizer.state[parameter][moment_name] = moment.to(parameter.device)


def _warn_of_changes(checkpoint: Checkpoint, model: Decoder) -> None:
    """Warn if the weights will differ from those of a run that was never stopped."""
    facts_now = circumstances_of(model)
    facts_before = checkpoint.circumstances
    changes = []
    for key, value in facts_now.items():
        if facts_before.get(key) != value:
            changes.append(f"{key} {facts_before.get(key)} -> {value}")
    if changes:
        effect = "the weights will not be, bit for bit, those of a run without a stop"
        log.warning("continued with another setting than before: %s; %s", ", ".join(changes), effect)


def circumstances_of(model: Decoder) -> dict[str, Any]:
    """Return the facts, besides the run's settings, on which the bits of a training depend, as plain JSON.

    The number of threads is one: with two threads weights differ by 1e-7 to 2e-5 from those with one thread,
    after two updates.
    """
    device = model.embedding.weight.device
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    is_compiled = any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules())
    return {
        "torch": torch.__version__,
        "device": device_name,
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "processes": current().size,
        "compiled": is_compiled,
    }


# --- Reading


def newest_checkpoint(folder: Path, writer: Writer) -> Checkpoint | None:
    """Return the newest intact checkpoint; None if there is no checkpoint at all.

    `writer` is the run that must have written it. Warns of damaged checkpoints, and of the training that is
    lost with them. Raises RunError if another run wrote the checkpoint, or if all are damaged: a run never
    begins afresh by itself.
    """
    damaged: list[str] = []
    paths = checkpoint_paths(folder)
    for path in reversed(paths):
        try:
            checkpoint = checkpoint_at(path, writer)
        except DamagedCheckpointError as error:
            damaged.append(f"{path.name} ({error})")
            continue
        if damaged:
            # The damaged one cannot be asked for its tokens. Every step has as many, so its number will do.
            lost_steps = step_of(paths[-1]) - checkpoint.step
            lost_tokens = lost_steps * checkpoint.so_far.tokens // max(1, checkpoint.step)
            text = "damaged checkpoint skipped: %s; back to step %d: %s tokens of training are lost"
            log.warning(text, ", ".join(damaged), checkpoint.step, f"{lost_tokens:,}")
        return checkpoint
    # If a running training has replaced them in the meantime, look again.
    if not all(path.exists() for path in paths):
        return newest_checkpoint(folder, writer)
    if damaged:
        problem = f"no checkpoint in {folder} is intact: {', '.join(damaged)}"
        raise RunError(problem, hint="remove the run directory to train afresh")
    return None


def checkpoint_at(path: Path, writer: Writer) -> Checkpoint:
    """Return the checkpoint in a folder. Raises DamagedCheckpointError; RunError if another run wrote it."""
    problem = problem_of(path)
    if problem:
        raise DamagedCheckpointError(problem)
    try:
        state = json.loads((path / "state.json").read_bytes())
        checkpoint = Checkpoint(
            path=path,
            so_far=TrainedSoFar.of(state),
            provenance=Provenance.of(state),
            circumstances=dict(state[MADE_BY]),
        )
    except KeyError as error:  # somebody changed file and manifest
        raise DamagedCheckpointError(f"state.json: there is no {error.args[0]}") from error
    except (ValueError, TypeError) as error:
        raise DamagedCheckpointError(f"state.json: {first_line(error)}") from error
    _check_writer(path, flat_texts(checkpoint.provenance.writer), flat_texts(writer))
    return checkpoint


def checkpoint_paths(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the oldest first. Symbolic links and stray files are left out."""
    paths = []
    for path in folder.glob("step-*"):
        if NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            paths.append(path)
    return sorted(paths, key=step_of)


def step_of(path: Path) -> int:
    """Read the step from a checkpoint's name."""
    return int(path.name.removeprefix("step-"))


def problem_of(path: Path) -> str | None:
    """Return how a checkpoint differs from what was written; None if every bit of every file is the same.

    safetensors does not notice changed bits: in a trial it loaded 298 of 300 files with a flipped bit. Raises
    RunError if the files cannot be read now (too many open files, no network disk). That says nothing about
    the checkpoint.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        # A manifest that lacks one of these three names is damaged, too (KeyError).
        for name in sorted({*manifest, "model.safetensors", "optimizer.safetensors", "state.json"}):
            if sha256_of_file(path / name) != manifest[name]:
                return f"{name} differs from its sha256"
    except OSError as error:
        if error.errno not in DAMAGE_ERRNOS:
            problem = f"cannot read {error.filename or path}: {error.strerror}"
            raise RunError(problem, hint="nothing was changed; the same command tries again") from error
        return f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _check_writer(path: Path, writer: Mapping[str, str], reader: Mapping[str, str]) -> None:
    """Raise RunError if the run that wrote a checkpoint is not the one that reads it."""
    differing = [key for key in reader if writer.get(key) != reader[key]]
    if differing:
        of_writer = _listed({key: writer.get(key, "unknown") for key in differing})
        of_reader = _listed({key: reader[key] for key in differing})
        problem = f"{path} was written by another run: {of_writer}; this run has {of_reader}"
        raise RunError(problem, hint="put this run's own checkpoints back, or remove them to train afresh")


def _listed(values: Mapping[str, str]) -> str:
    """Return the first few values as text: `seed=1, train.lr=0.002`."""
    return first_few([f"{key}={value}" for key, value in values.items()], DIFFERENCES_NAMED)


def stored_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's weights by name, without reading the weights. Raises RunError."""
    path = checkpoint.path / "model.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise RunError(f"{path}: {error}") from error


def check_weights(checkpoint: Checkpoint, model: Decoder) -> None:
    """Raise RunError if stored weights do not have the model's shapes. The meta device will do for it."""
    stored = stored_shapes(checkpoint)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    names = sorted(stored.keys() | expected.keys())
    differing = [name for name in names if stored.get(name) != expected.get(name)]
    if differing:
        raise RunError(f"{checkpoint.path} does not fit this model: {', '.join(differing[:3])}")


def load_weights(checkpoint: Checkpoint, model: Decoder) -> None:
    """Copy a checkpoint's weights into the model. Raises RunError if they have another shape."""
    check_weights(checkpoint, model)
    weights = load_file(checkpoint.path / "model.safetensors")
    model.load_state_dict(weights, strict=False)  # buffers are not stored

"""A run on disk as other commands read it: plain data, its code recognised, nothing imported."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.config.checks import LONGEST_CONTEXT, check_model, whole
from posenc.core.errors import UserError, visible
from posenc.core.paths import expanded
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.load import load_run
from posenc.results.settings import as_text
from posenc.running import run_directory as folder
from posenc.running.build import build_decoder, code_of, resolve_parts
from posenc.training.checkpoint import Checkpoint, newest_checkpoint


@dataclass(frozen=True)
class StoredRun:
    """A run whose settings hold together; `outline` is its model without numbers."""

    directory: Path
    settings: dict[str, Any]
    shape: ModelShape
    outline: Decoder
    checkpoint: Checkpoint


def _of_hash(run: str) -> Path | None:
    """The one run directory below runs/ whose name ends in this hash, as `posenc runs` shows it."""
    if not re.fullmatch(r"[0-9a-f]{8}", run) or os.path.exists(run):  # noqa: PTH110
        return None
    found = [path.parent for path in Path("runs").glob(f"*/*-{run}/config.yaml")]
    if len(found) > 1:
        raise UserError("run", run, "stands for several runs", allowed=sorted(map(str, found)))
    return found[0] if found else None


def stored_run(run: str, plugins: list[str]) -> StoredRun:
    """The run in the directory `run`. Raises UserError; RunError for damaged files."""
    directory = _of_hash(run) or expanded(run)
    if not directory.name or directory.name == "..":  # the folder's name holds the hash of its settings
        directory = Path(os.path.abspath(directory))  # noqa: PTH100 (resolve() follows links)
    if not os.path.isfile(directory / "config.yaml"):  # noqa: PTH113 (is_file raises for names too long)
        there = "not a run directory: it has no config.yaml"
        problem = there if directory.exists() else "there is no such folder"
        hint = "a run directory, or the hash at its end for one below runs/: posenc runs lists them"
        raise UserError("run", run, problem, hint=hint)
    folder.refuse_links(directory)
    loaded = load_run(directory)
    if loaded.config is None:
        raise UserError("run", run, loaded.problem or "config.yaml cannot be read")
    settings = {**loaded.config, "plugins": plugins}
    try:
        whole("seed", settings["seed"], least=0)
        shape = check_model(settings["model"])
        settings.update(_parts_of(settings, loaded.config.get("plugins")))
        with torch.device("meta"):
            outline = build_decoder(settings, shape, vocab_size=2)
        source = code_of(settings, outline)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise not_ours(run, error) from error
    checkpoint = newest_checkpoint(directory / "checkpoints")
    if checkpoint is None:
        raise UserError("run", run, "has no checkpoint yet; train it first")
    if checkpoint.state.get("encoding") != source:
        raise UserError(
            "run",
            run,
            f"was trained by other code of its encoding {settings['encoding']['name']}",
            hint="its weights mean nothing to the changed one; train it again",
        )
    return StoredRun(directory, settings, shape, outline, checkpoint)


def not_ours(run: str, error: Exception) -> UserError:
    """For a config.yaml that lacks what posenc writes, or holds something else."""
    return UserError("run", run, f"its config.yaml is not one of posenc's ({error!r})")


def _parts_of(settings: dict[str, Any], named: object) -> dict[str, Any]:
    """What the run is made of, resolved. A module that it names is named to the user, never imported."""
    try:
        return resolve_parts(
            settings, whole("context_length", settings["context_length"], least=2, most=LONGEST_CONTEXT)
        )
    except UserError as error:
        if error.key != "encoding" or settings["plugins"] or not named:
            raise
        again = visible(as_text(named).replace('"', "").replace(" ", ""))
        hint = f"it was trained with plugins={again}: if you trust that code, say so here too"
        raise UserError(error.key, error.value, error.problem, hint=hint) from error

"""Read the sizes of a checkpoint's weights from the headers of its files, without the weights."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from posenc.running.hf_checkpoint import HfCheckpoint, folder_of

# What reading a file raises that is cut, or that somebody else wrote.
DAMAGES = (OSError, ValueError, KeyError, TypeError, AttributeError)
LENGTH_BYTES = 8  # a safetensors file begins with the length of its header, in so many bytes


@dataclass(frozen=True)
class StoredTensor:
    """What the header of a file, or an outline of the model, says of a weight that is not read."""

    name: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def numbers(self) -> int:
        """Return how many numbers the tensor has."""
        return math.prod(self.shape)


def stored_tensors(checkpoint: HfCheckpoint) -> list[StoredTensor] | None:
    """Return the tensors of a checkpoint by the headers of its safetensors files; None without all files."""
    folder = folder_of(checkpoint)
    files = [] if folder is None else _safetensors_files(folder)
    # A download that stopped has some of the files, whose sizes would be those of half a model.
    if not all(file.is_file() for file in files):
        return None
    tensors = [tensor for file in files for tensor in _tensors_of_file(file)]
    return tensors or None


def _safetensors_files(folder: Path) -> list[Path]:
    """Return the files that transformers reads; a folder may hold the same weights in other files, too."""
    # transformers prefers the single file, so that the index beside it counts only where that one is missing.
    single = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if single.is_file() or not index.is_file():
        return [single]
    try:
        # The files of the index alone: a folder may hold the same
        # weights a second time, which then count twice.
        file_of_weight = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [folder / name for name in sorted(set(file_of_weight.values()))]
    except DAMAGES:
        return []


def outlined_tensors(outline: nn.Module) -> list[StoredTensor]:
    """Return the weights of a model that was built without them, as float32."""
    return [
        StoredTensor(name, tuple(parameter.shape), 4 * parameter.numel())
        for name, parameter in outline.named_parameters()
    ]


def _tensors_of_file(file: Path) -> list[StoredTensor]:
    """Read the header of a safetensors file: its length, then JSON. A damaged one has no tensors."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
            # A damaged file may claim a header of any length.
            header = json.loads(stream.read(min(length, file.stat().st_size)))
        # The header's only entry that is no tensor.
        header.pop("__metadata__", None)
        tensors = []
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors.append(StoredTensor(name, tuple(entry["shape"]), end - begin))
    except DAMAGES:
        return []
    return tensors

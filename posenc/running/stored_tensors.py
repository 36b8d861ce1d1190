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
SINGLE_FILE = "model.safetensors"  # of a model that is not cut into several files
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
    """Return the tensors of a checkpoint by the headers of its safetensors files.

    None if a file is missing or cut: a download that stopped would have the sizes of half a model.
    """
    folder = folder_of(checkpoint)
    files = [] if folder is None else safetensors_files(folder)
    tensors: list[StoredTensor] = []
    for file in files:
        header = _whole_header(file)
        if header is None:
            return None
        tensors += header.tensors
    return tensors or None


def is_whole(file: Path) -> bool:
    """Tell whether a safetensors file is there, with all bytes that its header promises."""
    return _whole_header(file) is not None


def safetensors_files(folder: Path) -> list[Path]:
    """Return the files that transformers reads; a folder may hold the same weights in other files, too."""
    # transformers prefers the single file, so that the index beside it counts only where that one is missing.
    single = folder / SINGLE_FILE
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


@dataclass(frozen=True)
class _Header:
    """Hold what the header of a safetensors file says."""

    tensors: list[StoredTensor]
    file_bytes: int  # of the whole file, this header included


def _header(file: Path) -> _Header | None:
    """Read the header of a safetensors file: its length, then JSON. A damaged one is None."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
            # A damaged file may claim a header of any length.
            entries = json.loads(stream.read(min(length, file.stat().st_size)))
        # The header's only entry that is no tensor.
        entries.pop("__metadata__", None)
        tensors = []
        last_byte = 0
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            tensors.append(StoredTensor(name, tuple(entry["shape"]), end - begin))
            last_byte = max(last_byte, end)
    except DAMAGES:
        return None
    return _Header(tensors, LENGTH_BYTES + length + last_byte)


def _whole_header(file: Path) -> _Header | None:
    """Return the header of a file; None if the file is missing, damaged or cut."""
    header = _header(file)
    if header is None or file.stat().st_size < header.file_bytes:
        return None
    return header

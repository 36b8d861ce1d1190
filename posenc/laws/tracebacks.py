"""Find the line of an exception that an author can mend: in their encoding, not in what it calls."""

from __future__ import annotations

import sys
from collections.abc import Set
from pathlib import Path
from traceback import FrameSummary, StackSummary

import torch

from posenc.laws.subject import Subject

FOLDER_OF_TORCH = Path(torch.__file__).parent
FOLDER_OF_POSENC = Path(__file__).parents[1]


def files_of_encoding(subject: Subject) -> frozenset[str]:
    """Return the files with the classes of an encoding, of its parts and modules; torch's are left out."""
    try:
        encoding = subject.build(0).encoding
    except Exception:  # an encoding may raise anything, and may be judged for just that
        return frozenset()
    names = {type(module).__module__ for module in encoding.modules()}
    files = {getattr(sys.modules.get(name), "__file__", None) for name in names}
    return frozenset(file for file in files if file and not _is_in(file, FOLDER_OF_TORCH))


def frame_of_author(frames: StackSummary, files: Set[str]) -> FrameSummary:
    """Return the innermost frame in one of the files, those of the encoding.

    Without any it is the innermost frame that belongs neither to posenc nor to torch, such as one of a
    callable; without that one the innermost outside torch.
    """
    outside_torch = [frame for frame in frames if not _is_in(frame.filename, FOLDER_OF_TORCH)]
    foreign = [frame for frame in outside_torch if not _is_in(frame.filename, FOLDER_OF_POSENC)]
    in_encoding = [frame for frame in frames if frame.filename in files]
    return (in_encoding or foreign or outside_torch or frames)[-1]


def _is_in(file: str, folder: Path) -> bool:
    return Path(file).is_relative_to(folder)

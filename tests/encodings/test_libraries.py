"""Encodings equal those of transformers and x-transformers, where these have them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from libraries import LIBRARIES


@pytest.mark.parametrize("name, library", list(LIBRARIES))
def test_largest_difference(name: str, library: str) -> None:
    pytest.importorskip("x_transformers" if library.startswith("x-") else "transformers")
    measure, allowed = LIBRARIES[name, library]
    with torch.no_grad():
        assert measure() <= allowed


@pytest.mark.slow
def test_the_script_prints_a_table() -> None:
    pytest.importorskip("x_transformers")
    pytest.importorskip("transformers")
    script = Path(__file__).parents[2] / "scripts" / "encoding_differences.py"
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert "largest difference" in out and "DeepSeek-V3" in out and "stick_breaking" in out

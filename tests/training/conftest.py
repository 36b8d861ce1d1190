from __future__ import annotations

from pathlib import Path

import pytest
import tiny_model

from posenc.data import TokenStore


@pytest.fixture
def store(place: Path, corpus: Path) -> TokenStore:
    return tiny_model.tokens_of(corpus)

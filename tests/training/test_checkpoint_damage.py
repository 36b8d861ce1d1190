"""Damaged checkpoints: noticed, told, and the one before them used."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_model import STEPS, build, run
from two_checkpoints import FILES, flip, write_two

from posenc.core.errors import RunError
from posenc.data import TokenStore
from posenc.training.checkpoint import checkpoint_paths, newest_checkpoint


@pytest.fixture
def two(store: TokenStore, tmp_path: Path) -> Path:
    return write_two(store, tmp_path / "checkpoints")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, cut, empty, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_noticed_and_the_one_before_is_used(
    two: Path, name: str, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert newest_checkpoint(two).step == 9
    damage(two / "step-00000009" / name)
    with caplog.at_level(logging.WARNING):
        found = newest_checkpoint(two)
    assert found.step == 6
    assert "step-00000009" in caplog.text and "back to step 6: 192 tokens of training are lost" in caplog.text


def test_a_state_of_gigabytes_is_refused_before_anything_is_hashed(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in checkpoint_paths(two):
        os.truncate(path / "state.json", 20_000_000_000)  # of nothing: it takes no room
    monkeypatch.setattr(
        "posenc.training.checkpoint.sha256_of_file", lambda path: pytest.fail(f"hashed {path}")
    )
    with pytest.raises(RunError, match=r"state\.json is too large"):
        newest_checkpoint(two)


def test_a_damaged_newer_one_does_not_push_out_what_is_written_now(two: Path, store: TokenStore) -> None:
    flip(two / "step-00000009" / "model.safetensors")
    run(build("rope", store), store, two, stop_after=1)  # step 7
    assert [p.name for p in checkpoint_paths(two)] == ["step-00000006", "step-00000007"]
    flip(two / "step-00000007" / "model.safetensors")
    assert newest_checkpoint(two).step == 6


def test_all_damaged_stops_and_never_starts_afresh(two: Path, store: TokenStore) -> None:
    for path in checkpoint_paths(two):
        flip(path / "model.safetensors")
    before = sorted(p.name for p in two.iterdir())
    with pytest.raises(RunError, match=r"step-00000009.*step-00000006") as caught:
        run(build("rope", store), store, two)
    assert "remove the run directory" in caught.value.text()
    assert sorted(p.name for p in two.iterdir()) == before


def test_files_that_belong_to_the_weights_are_verified_too(store: TokenStore, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    run(build("rope", store), store, folder, files={"tokenizer.json": "{}"})
    assert newest_checkpoint(folder).step == STEPS
    (folder / f"step-{STEPS:08d}" / "tokenizer.json").write_text("[]")
    with pytest.raises(RunError, match=r"tokenizer\.json differs"):
        newest_checkpoint(folder)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def unlisted(path: Path) -> None:
    (path.parent / "tokenizer.json").write_text("{}")


def other_step(path: Path) -> None:
    shutil.rmtree(path.parent)
    shutil.copytree(path.parents[1] / "step-00000006", path.parent)


@pytest.mark.parametrize("damage", [fifo, deep, unlisted, other_step])
def test_what_is_not_as_it_was_written_is_not_used(two: Path, damage: Any) -> None:
    damage(two / "step-00000009" / "manifest.json")
    assert newest_checkpoint(two).step == 6

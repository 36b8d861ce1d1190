"""Checkpoints: whole or not there, damage noticed, the last good one kept, room looked for beforehand."""

import errno
import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from tiny_model import OPTIMIZATION, STEPS, build, run

from posenc.core import atomic_files
from posenc.core.errors import RunError
from posenc.training import checkpoint
from posenc.training.checkpoint import checkpoint_paths, newest_checkpoint, resume, save_checkpoint
from posenc.training.optimizer import build_optimizer

RUN = {"encoding": {"name": "rope"}, "settings_hash": "12345678"}
STATE = {"tokens": 0, "seconds": 0.0, "final_loss": None}


@pytest.fixture
def two(store, tmp_path):
    folder = tmp_path / "checkpoints"
    run(build("rope", store), store, folder, stop_after=6)
    run(build("rope", store), store, folder, stop_after=3)
    assert [p.name for p in checkpoint_paths(folder)] == ["step-00000006", "step-00000009"]
    return folder


def resumed(folder, store):
    model = build("rope", store)
    return resume(folder, model, build_optimizer(model, OPTIMIZATION), STEPS, RUN)


def save(store, folder, step):
    model = build("rope", store)
    state = {**STATE, "tokens": 64 * step}
    return save_checkpoint(folder, step, model, build_optimizer(model, OPTIMIZATION), state, {})


def test_keeps_the_last_two_by_number_and_clears_leftovers(two, store):
    shutil.copytree(two / "step-00000009", two / ".tmp-step-00000011")
    assert newest_checkpoint(two).step == 9
    resumed(two, store)
    for step in (99_999_999, 100_000_000):
        save(store, two, step)
    assert sorted(p.name for p in two.iterdir()) == ["step-100000000", "step-99999999"]


def test_weights_that_are_not_finite_are_never_written(store, tmp_path):
    model = build("rope", store)
    with torch.no_grad():
        model.blocks[1].mlp.up.weight[3, 3] = float("inf")
    with pytest.raises(
        checkpoint.NonFiniteWeightsError, match=r"after step 5 \(blocks\.1\.mlp\.up\.weight\)"
    ):
        save_checkpoint(tmp_path / "new", 5, model, build_optimizer(model, OPTIMIZATION), STATE, {})
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_of_another_run_is_refused(two, store):
    """Its weights have the same names and shapes."""
    said = "encoding.name=rope, settings_hash=12345678; this run has encoding.name=alibi, settings_hash=8765"
    with pytest.raises(RunError, match=f"step-00000009 was written by another run: {said}"):
        run(build("alibi", store), store, two, settings_hash="8765")


FULL = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize("target, name", [(Path, "write_bytes"), (checkpoint, "sync")])
def test_a_full_disk_says_path_needed_and_free_and_leaves_the_old_ones(two, store, monkeypatch, target, name):
    monkeypatch.setattr(target, name, FULL)
    with pytest.raises(RunError) as caught:
        save(store, two, 12)
    text = caught.value.text()
    assert f"cannot write {two}/step-00000012: No space left on device" in text
    needed = 4 * sum(p.numel() for p in build("rope", store).parameters())  # no moments before a step
    assert f"needed: {needed:,} bytes; free: " in text and "the same command continues" in text
    assert sorted(p.name for p in two.iterdir()) == ["step-00000006", "step-00000009"]
    monkeypatch.undo()
    assert save(store, two, 12).name == "step-00000012"


def test_room_is_looked_for_before_the_first_step(store, tmp_path, monkeypatch):
    folder = tmp_path / "not" / "yet"
    needed = 3 * 3 * 4 * sum(p.numel() for p in build("rope", store).parameters()) + checkpoint.RECORDS
    usage = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(atomic_files.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(RunError, match=f"needed: {needed:,} bytes; free: {needed - 1:,} bytes") as caught:
        resumed(folder, store)
    assert str(folder) in caught.value.text() and not folder.exists()
    usage.free = needed
    assert resumed(folder, store)[0] == 0


def test_what_changed_since_is_named(two, store, monkeypatch, caplog):
    resumed(two, store)
    assert not caplog.text
    monkeypatch.setattr(checkpoint.torch, "get_num_threads", lambda: 7)
    resumed(two, store)
    assert "threads 1 -> 7" in caplog.text and "bit for bit" in caplog.text


def flip(path):
    """One bit of the file, other than of white space, which means nothing in JSON."""
    data = bytearray(path.read_bytes())
    at = next(i for i in range(len(data) // 2, len(data)) if not chr(data[i]).isspace())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGE = [(name, flip) for name in ("model.safetensors", "state.json", "manifest.json")]
DAMAGE += [("optimizer.safetensors", Path.unlink), ("model.safetensors", lambda path: os.truncate(path, 99))]


@pytest.mark.parametrize("name, damage", DAMAGE)
def test_damage_is_noticed_and_the_one_before_is_used(two, store, name, damage, caplog):
    damage(two / "step-00000009" / name)
    with caplog.at_level(logging.WARNING):
        found = newest_checkpoint(two)
    assert found.step == 6
    assert "step-00000009" in caplog.text and "back to step 6: 192 tokens of training are lost" in caplog.text
    shutil.copytree(two, two.parent / "both")
    run(build("rope", store), store, two, stop_after=1)  # the damaged one does not push out the new one
    assert [p.name for p in checkpoint_paths(two)] == ["step-00000006", "step-00000007"]
    damage(two.parent / "both" / "step-00000006" / name)
    with pytest.raises(RunError, match=r"step-00000009(.|\n)*step-00000006"):
        run(build("rope", store), store, two.parent / "both")  # none is good: it never begins afresh


def test_what_cannot_be_read_now_is_no_damage(two, monkeypatch):
    open_files = mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    monkeypatch.setattr(checkpoint, "sha256_of_file", open_files)
    with pytest.raises(RunError, match="Too many open files"):
        newest_checkpoint(two)

"""Checkpoints: whole or not there, damage noticed, the last good one kept, room looked for beforehand."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from tiny_model import OPTIMIZATION, STEPS, build, plan_of, run, sha256

from posenc.core import atomic_files
from posenc.core.errors import RunError
from posenc.training import checkpoint
from posenc.training.checkpoint import (
    TrainedSoFar,
    newest_checkpoint,
    resume,
    save_checkpoint,
)
from posenc.training.optimizer import build_optimizer

BATCH_TOKENS = 64
RUN = {"encoding": {"name": "rope"}, "settings_hash": "12345678"}  # that of `tiny_model.plan_of`


@pytest.fixture
def folder(store, tmp_path):
    """A folder with the checkpoints of steps 6 and 9 of a run that was stopped twice."""
    folder = tmp_path / "checkpoints"
    run(build("rope", store), store, folder, stop_after=6)
    run(build("rope", store), store, folder, stop_after=3)
    assert names_in(folder) == ["step-00000006", "step-00000009"]
    return folder


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def resumed(folder, store):
    model = build("rope", store)
    optimizer = build_optimizer(model, OPTIMIZATION, "fp32")
    return resume(plan_of(model, store, folder).checkpoints, model, optimizer, STEPS)


def save(store, folder, step, model=None):
    model = model or build("rope", store)
    optimizer = build_optimizer(model, OPTIMIZATION, "fp32")
    so_far = TrainedSoFar(step, step * BATCH_TOKENS, seconds=0.0, final_loss=None)
    return save_checkpoint(plan_of(model, store, folder).checkpoints, model, optimizer, so_far)


def bytes_of_weights(store):
    return 4 * sum(p.numel() for p in build("rope", store).parameters())


def test_a_file_with_the_name_of_a_checkpoint_is_none(folder, store):
    (folder / "step-00000012").write_text("")
    assert resumed(folder, store).step == 9


# --- Which ones are kept


def test_the_last_two_by_number_are_kept(folder, store):
    for step in (99_999_999, 100_000_000):
        save(store, folder, step)
    assert names_in(folder) == ["step-100000000", "step-99999999"]


def test_the_newest_is_the_last_by_number(folder):
    assert newest_checkpoint(folder, RUN).step == 9


def test_what_a_killed_save_left_is_no_checkpoint_and_goes(folder, store):
    shutil.copytree(folder / "step-00000009", folder / ".tmp-step-00000011")
    assert newest_checkpoint(folder, RUN).step == 9
    resumed(folder, store)
    assert names_in(folder) == ["step-00000006", "step-00000009"]


def test_what_a_checkpoint_says_of_the_training_comes_back(folder, store):
    so_far = resumed(folder, store)
    state = json.loads((folder / "step-00000009" / "state.json").read_text())
    assert so_far.step == 9
    assert so_far.tokens == state["tokens"] == 9 * BATCH_TOKENS
    assert so_far.seconds == state["seconds"] > 0
    assert so_far.final_loss == state["final_loss"] > 0


def test_a_folder_without_checkpoints_is_a_fresh_run(store, tmp_path):
    assert resumed(tmp_path / "nothing", store) == TrainedSoFar(0, 0, 0.0, None)


# --- What is refused


def test_weights_that_are_not_finite_are_never_written(store, tmp_path):
    model = build("rope", store)
    with torch.no_grad():
        model.blocks[1].mlp.up.weight[3, 3] = float("inf")
    message = r"after step 5 \(blocks\.1\.mlp\.up\.weight\)"
    with pytest.raises(checkpoint.NonFiniteWeightsError, match=message):
        save(store, tmp_path / "new", 5, model)
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_of_another_run_is_refused(folder, store):
    """Its weights have the same names and shapes."""
    writer = "encoding.name=rope, settings_hash=12345678"
    reader = "encoding.name=alibi, settings_hash=8765"
    with pytest.raises(RunError, match="step-00000009 was written by another run") as caught:
        run(build("alibi", store), store, folder, settings_hash="8765")
    assert f"{writer}; this run has {reader}" in caught.value.text()


# --- A full disk

NO_SPACE = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
WRITES = [(Path, "write_bytes"), (atomic_files, "sync")]


@pytest.mark.parametrize(("owner", "call"), WRITES)
def test_a_full_disk_says_path_needed_and_free(folder, store, monkeypatch, owner, call):
    monkeypatch.setattr(owner, call, NO_SPACE)
    with pytest.raises(RunError) as caught:
        save(store, folder, 12)
    text = caught.value.text()
    assert f"cannot write {folder}/step-00000012: No space left on device" in text
    assert f"needed: {bytes_of_weights(store):,} bytes; free: " in text  # no moments before a step
    assert "the same command continues" in text


@pytest.mark.parametrize(("owner", "call"), WRITES)
def test_a_full_disk_leaves_the_old_ones(folder, store, monkeypatch, owner, call):
    with monkeypatch.context() as patch, pytest.raises(RunError):
        patch.setattr(owner, call, NO_SPACE)
        save(store, folder, 12)
    assert names_in(folder) == ["step-00000006", "step-00000009"]
    assert save(store, folder, 12).name == "step-00000012"


def test_room_is_looked_for_before_the_first_step(store, tmp_path, monkeypatch):
    folder = tmp_path / "not" / "yet"
    # three checkpoints, each with weights and two moments
    needed = 3 * 3 * bytes_of_weights(store) + checkpoint.BYTES_OF_RESULTS
    usage = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(atomic_files.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(RunError, match=f"needed: {needed:,} bytes; free: {needed - 1:,} bytes") as caught:
        resumed(folder, store)
    assert str(folder) in caught.value.text()
    assert not folder.exists()
    usage.free = needed
    assert resumed(folder, store).step == 0


# --- What changed since


def test_the_same_machine_is_no_reason_to_warn(folder, store, caplog):
    resumed(folder, store)
    assert not caplog.text


def test_another_number_of_threads_is_named(folder, store, monkeypatch, caplog):
    monkeypatch.setattr(checkpoint.torch, "get_num_threads", lambda: 7)
    resumed(folder, store)
    assert "threads 1 -> 7" in caplog.text
    assert "bit for bit" in caplog.text


# --- Damage


def flip_a_bit(path):
    """Not one of white space, which means nothing in JSON."""
    content = bytearray(path.read_bytes())
    at = next(i for i in range(len(content) // 2, len(content)) if not chr(content[i]).isspace())
    content[at] ^= 1
    path.write_bytes(content)


def cut_off(path):
    os.truncate(path, 99)


damaged_ways = pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", flip_a_bit),
        ("state.json", flip_a_bit),
        ("manifest.json", flip_a_bit),
        ("optimizer.safetensors", Path.unlink),
        ("model.safetensors", cut_off),
    ],
)


@damaged_ways
def test_after_damage_the_one_before_is_used_and_the_loss_is_told(folder, name, damage, caplog):
    damage(folder / "step-00000009" / name)
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(folder, RUN).step == 6
    assert "step-00000009" in caplog.text
    assert f"back to step 6: {3 * BATCH_TOKENS} tokens of training are lost" in caplog.text


def without(path, key, *, of=None):
    """Remove a key of state.json, or of the part `of` of it, and mend the manifest."""
    state = json.loads((path / "state.json").read_text())
    del (state if of is None else state[of])[key]
    (path / "state.json").write_text(json.dumps(state))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["state.json"] = sha256(path / "state.json")
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("key", "part"), [("tokens", None), ("made_by", None), ("settings_hash", "run")])
def test_a_state_that_lacks_a_key_is_damage(folder, key, part):
    path = folder / "step-00000009"
    without(path, key, of=part)
    with pytest.raises(checkpoint.DamagedCheckpointError, match=f"state.json: there is no {key}"):
        checkpoint.checkpoint_at(path, RUN)


@damaged_ways
def test_a_damaged_one_does_not_push_out_a_good_one(folder, store, name, damage):
    damage(folder / "step-00000009" / name)
    run(build("rope", store), store, folder, stop_after=1)
    assert names_in(folder) == ["step-00000006", "step-00000007"]


@damaged_ways
def test_a_run_whose_checkpoints_are_all_damaged_never_begins_afresh(folder, store, name, damage):
    for step in ("step-00000006", "step-00000009"):
        damage(folder / step / name)
    with pytest.raises(RunError, match=r"step-00000009(.|\n)*step-00000006"):
        run(build("rope", store), store, folder)


def test_what_cannot_be_read_now_is_no_damage(folder, monkeypatch):
    too_many_open_files = mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files"))
    monkeypatch.setattr(checkpoint, "sha256_of_file", too_many_open_files)
    with pytest.raises(RunError, match="Too many open files"):
        newest_checkpoint(folder, RUN)

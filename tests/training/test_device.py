"""What `auto` means for device and precision, and the precision of a run that is continued."""

import os
import signal

import pytest
import tiny
import torch
from fake_runs import only_run
from tiny_model import on_disk

from posenc.core.errors import UserError
from posenc.training import device, loop
from posenc.training.device import resolve_device, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(("has_bf16", "precision"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_where_the_hardware_has_it(monkeypatch, has_bf16, precision):
    monkeypatch.setattr(device, "has_hardware_bf16", lambda _: has_bf16)
    assert resolve_precision("auto", CPU) == precision


@pytest.mark.parametrize("has_bf16", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_named_precision_is_taken_on_any_hardware(monkeypatch, has_bf16, precision):
    monkeypatch.setattr(device, "has_hardware_bf16", lambda _: has_bf16)
    assert resolve_precision(precision, CPU) == precision


@pytest.fixture
def without_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_without_accelerator_auto_is_the_cpu(without_accelerator):
    assert resolve_device("auto") == CPU


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_an_accelerator_that_is_not_there_is_refused(without_accelerator, name):
    with pytest.raises(UserError, match="no such device"):
        resolve_device(name)


def stop_in_step(patch, step):
    """Have SIGTERM strike in an update, so that the run saves after it and ends."""
    updates = []
    update = loop.update

    def struck(*arguments):
        updates.append(None)
        if len(updates) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        update(*arguments)

    patch.setattr(loop, "update", struck)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_begun_in_fp32_goes_on_in_fp32_where_auto_is_bf16(
    train, working_folder, monkeypatch, optimizer
):
    """Muon computed in bf16 then, under the same hash: its precision had a home of its own."""
    for folder, precision in (("as_begun", "fp32"), ("auto", "auto")):
        run = ("encoding=rope", f"optim={optimizer}", f"runs_dir={folder}")
        with monkeypatch.context() as patch:
            stop_in_step(patch, 20)
            assert train(*run, "train.precision=fp32").code == 143
        with monkeypatch.context() as patch:
            patch.setattr(device, "has_hardware_bf16", lambda _: True)
            continued = train(*run, f"train.precision={precision}")
        assert continued.code == 0, continued.err
        assert "continuing at step" in continued.err
    auto = only_run(working_folder / "auto") / "checkpoints"
    as_begun = only_run(working_folder / "as_begun") / "checkpoints"
    assert on_disk(auto, tiny.STEPS) == on_disk(as_begun, tiny.STEPS)

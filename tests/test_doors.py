"""What a run meets on its way: a folder that cannot be written, another process, a stop when compiled."""

import shutil
import threading
import time

import pytest
import tiny_model

from posenc.running.run_directory import locked
from posenc.training.device import compiled_blocks


def test_a_run_that_is_held_is_waited_for_when_asked(tmp_path, monkeypatch, capsys):
    taken = threading.Event()

    def hold():
        with locked(tmp_path):
            taken.set()
            time.sleep(1.5)  # longer than without the wish to wait

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    monkeypatch.setenv("POSENC_WAIT", "1")
    with locked(tmp_path):
        holder.join(0.2)
        assert not holder.is_alive()
    assert "waiting for another process to finish" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
def test_compiled_and_stopped_is_compiled_and_not_stopped(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    store = tiny_model.tokens_of(corpus)
    # the last one continues with another seed's model: everything has to come from the checkpoint
    for folder, seed, stop in (("whole", 0, None), ("stopped", 0, 6), ("stopped", 9, None)):
        model = tiny_model.build("rope", store, seed)
        with compiled_blocks(model, enabled=True):
            tiny_model.run(model, store, tmp_path / folder, stop_after=stop, precision="bf16")
    assert tiny_model.on_disk(tmp_path / "stopped") == tiny_model.on_disk(tmp_path / "whole")

"""What the parts share: a tiny corpus, posenc called in this process, and one trained run to read."""

import logging
import os
import shutil
import signal

import pytest
import tiny
from in_process import exit_code_of

for _name in list(os.environ):  # what a machine sets (HF_HUB_OFFLINE=1, a W&B key) must not change a test
    if _name.startswith(("HF_", "WANDB_", "POSENC_", "HYDRA_", "TRACKIO_")):
        del os.environ[_name]
# Before torch is loaded, here and in every process that a test starts: two processes with two spinning
# threads each fight for two cores (a smoke run took 89 s instead of 11).
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
if hasattr(signal, "SIGHUP"):  # nohup leaves it ignored, and processes of tests would inherit that
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


SET_APART = ("slow", "faults", "cluster")  # `pytest -m extended` runs all of them


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if any(item.get_closest_marker(name) for name in SET_APART):
            item.add_marker("extended")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder of 60 documents; never changed."""
    return tiny.write_corpus(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """A token cache for the whole session, so that the tiny corpus is tokenised once."""
    return tmp_path_factory.mktemp("posenc-cache")


@pytest.fixture
def place(tmp_path, shared_cache, monkeypatch):
    """An empty working folder, with the shared cache and one thread for processes and for this one."""
    import torch

    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("POSENC_CACHE", str(shared_cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("HYDRA_FULL_ERROR", "POSENC_SWEEP", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    yield folder
    monkeypatch.undo()
    torch.set_num_threads(threads)


@pytest.fixture
def store(place, corpus):
    import tiny_model

    return tiny_model.tokens_of(corpus)


@pytest.fixture(autouse=True)
def no_log_handler_is_left():
    """A handler that Hydra sets up in a test would write to a closed stream in those that follow."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in before:
            root.removeHandler(handler)


@pytest.fixture
def posenc(place, capsys):
    """`posenc("train", ...)` in this process, with what it printed."""

    def call(*arguments):
        capsys.readouterr()
        return tiny.Result(exit_code_of(*arguments), *capsys.readouterr())

    return call


@pytest.fixture
def train(posenc, corpus):
    """`posenc train` at the tiny size: `train("encoding=rope", ...)`."""
    return lambda *overrides: posenc("train", *tiny.TINY, f"data.paths={corpus}", *overrides)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory, corpus, shared_cache):
    """The `runs` folder of one finished run (rope, seed 0), trained once a session. Read it, copy it."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = ["train", *tiny.TINY, f"data.paths={corpus}", "encoding=rope"]
    result = tiny.spawn(*arguments, cwd=folder, POSENC_CACHE=str(shared_cache))
    assert result.code == 0, result.err
    (folder / "out.txt").write_text(result.out)
    (folder / "err.txt").write_text(result.err)
    return folder / "runs"


@pytest.fixture
def run_copy(trained_once, place):
    """A run directory of one's own: a copy of the trained one, at the same place below `place`."""
    shutil.copytree(trained_once, place / "runs")
    return next((place / "runs" / "default").iterdir())

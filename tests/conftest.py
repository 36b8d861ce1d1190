"""What the parts share: a tiny corpus, posenc called in this process, and one trained run to read."""

import gc
import logging
import os
import shutil
import signal

import pytest
import tiny
from in_process import called_in, exit_code_of

# What a machine sets (HF_HUB_OFFLINE=1, a W&B key) must not change a test.
for _name in list(os.environ):
    if _name.startswith(("HF_", "WANDB_", "POSENC_", "HYDRA_", "TRACKIO_")):
        del os.environ[_name]
# Before torch is loaded, here and in every process that a test starts: two processes with two spinning
# threads each fight for two cores (a smoke run took 89 s instead of 11).
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
# nohup leaves SIGHUP ignored, and a shell SIGINT in what it starts in the background. The processes of
# tests would inherit that.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


MARKERS_SET_APART = ("slow", "faults", "cluster")  # `pytest -m extended` runs all of them


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if any(item.get_closest_marker(name) for name in MARKERS_SET_APART):
            item.add_marker("extended")


def pytest_collection_finish():
    """Take modules and tests out of the garbage collection, which would go through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Let the disk write files when it likes: to wait took a tenth of the time. Other processes do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder of 60 documents; never changed."""
    return tiny.write_corpus(tmp_path_factory.mktemp("corpus") / "texts")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """A token cache for the whole session, so that the tiny corpus is tokenised once."""
    return tmp_path_factory.mktemp("posenc-cache")


@pytest.fixture
def working_folder(tmp_path, shared_cache, monkeypatch):
    """Enter an empty folder, with the shared cache and one thread, here and in processes that are started."""
    import torch

    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("POSENC_CACHE", str(shared_cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("HYDRA_FULL_ERROR", "POSENC_SWEEP", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # posenc sets it for the whole process, which the tests that follow would inherit.
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    yield folder
    monkeypatch.undo()
    torch.set_num_threads(threads)


@pytest.fixture
def store(working_folder, corpus):
    import tiny_model

    return tiny_model.tokens_of(corpus)


@pytest.fixture(autouse=True)
def no_log_handler_is_left():
    """Remove the handler that Hydra sets up: in later tests it would write to a closed stream."""
    root = logging.getLogger()
    handlers_before = root.handlers[:]
    yield
    for handler in root.handlers[:]:
        is_new = handler not in handlers_before
        if is_new and type(handler) is logging.StreamHandler:
            root.removeHandler(handler)


@pytest.fixture
def posenc(working_folder, capsys):
    """Return a function that calls posenc in this process: `posenc("train", ...)` gives a `tiny.Result`."""

    def call(*arguments):
        capsys.readouterr()  # what was printed before is not of this call
        code = exit_code_of(*arguments)
        printed = capsys.readouterr()
        return tiny.Result(code, printed.out, printed.err)

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
    result = called_in(folder, shared_cache, *arguments)
    assert result.code == 0, result.err
    (folder / "out.txt").write_text(result.out)
    (folder / "err.txt").write_text(result.err)
    return folder / "runs"


@pytest.fixture
def run_copy(trained_once, working_folder):
    """A run directory that a test may change: a copy of the trained one, below `working_folder`."""
    shutil.copytree(trained_once, working_folder / "runs")
    return next((working_folder / "runs" / "default").iterdir())

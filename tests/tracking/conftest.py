"""A home of its own for each test, and servers that behave badly."""

import os
import socket
import sys
import tempfile

import pytest
from fake_wandb_server import FakeWandb

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp(prefix="posenc-trackio-")  # read when trackio is imported


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No key, no settings, no netrc and no proxy of the user's; wandb starts anew in every test."""
    place = tmp_path / "home"
    place.mkdir()
    for name in [*os.environ]:
        if name.startswith("WANDB_") or name.lower().endswith("_proxy") or name == "NETRC":
            monkeypatch.delenv(name)
    # set through monkeypatch, so that what posenc sets by default is undone as well
    quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
    for name, value in {**quiet, "WANDB_DATA_DIR": f"{tmp_path}/staging", "HOME": str(place)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield place
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture
def fake_wandb():
    """A W&B server that answers, until it is told otherwise."""
    server = FakeWandb()
    yield server
    server.close()


@pytest.fixture
def dead_port():
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"http://127.0.0.1:{port}"

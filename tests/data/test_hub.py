"""The hub: probed once, and what is said when it is out of reach."""

import socket
import time

import pytest
from corpora import conf

from posenc.core.errors import RunError
from posenc.data import hub, read_facts


@pytest.fixture
def server(monkeypatch):
    """A server that takes connections, as the hub."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server


def test_a_hub_that_takes_connections_is_reachable(server):
    assert hub.reachable()


def test_a_user_who_is_offline_by_choice_is_not_connected(server, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub.reachable()


def test_a_hub_out_of_reach_is_tried_once(monkeypatch):
    attempts = []

    def refuse(*arguments, **keywords):
        attempts.append(arguments)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert not hub.reachable()
    assert not hub.reachable()
    assert len(attempts) == 1


def test_after_a_failure_the_hubs_libraries_stay_offline(monkeypatch):
    """They would try again and again for 23 s."""
    assert not hub.reachable()
    assert hub.os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("name", "repository"), [("wikitext2", "Salesforce/wikitext"), ("tinystories", "TinyStories")]
)
def test_a_hub_out_of_reach_is_said_in_two_lines(monkeypatch, name, repository):
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(RunError) as caught:
        read_facts(conf(name))
    first, second = caught.value.text().split("\n")
    assert repository in first
    assert "127.0.0.1:9" in first
    assert "secret" not in first
    assert "data=files" in second
    assert "posenc data prepare" in second
    assert time.monotonic() - started < 12

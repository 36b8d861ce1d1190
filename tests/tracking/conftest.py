"""A home of its own for each test, and servers that behave badly."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from posenc.paths import conf_dir


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No key, no settings, no netrc and no proxy of the user's; wandb starts anew in every test."""
    place = tmp_path / "home"
    place.mkdir()
    for name in [*os.environ]:
        if (
            name.startswith("WANDB_")
            or name.lower().endswith("_proxy")
            or name in ("NETRC", "XDG_CONFIG_HOME")
        ):
            monkeypatch.delenv(name)
    # set through monkeypatch, so that what posenc sets by default is undone as well
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(tmp_path)
    yield place
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture
def wandb_group() -> dict[str, Any]:
    """The config group as shipped."""
    loaded: dict[str, Any] = yaml.safe_load((conf_dir() / "tracking" / "wandb.yaml").read_text())
    return loaded


class FakeWandb:
    """Enough of a W&B server for a run to start. `state`: ok, unauthorized, hanging or graphql-hangs."""

    def __init__(self) -> None:
        self.state = "ok"
        self.release = threading.Event()
        self.requests: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode(errors="replace")
                fake.requests.append(body)
                if fake.state == "hanging" or (fake.state == "graphql-hangs" and "graphql" in self.path):
                    fake.release.wait(60)
                    self.close_connection = True
                elif fake.state == "unauthorized":
                    self.reply(401, {"errors": [{"message": "user is not logged in"}]})
                else:
                    self.reply(200, {"data": fake.answer(body)} if "graphql" in self.path else {})

            do_GET = do_HEAD = do_POST  # noqa: N815

            def reply(self, status: int, content: dict[str, Any]) -> None:
                text = b"" if self.command == "HEAD" else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, body: str) -> dict[str, Any]:
        """The data of one GraphQL operation."""
        if "upsertBucket" in body:
            asked = json.loads(body)["variables"]
            project = {"id": "p", "name": "posenc", "entity": {"id": "e", "name": "someone"}}
            bucket = {
                "id": "b",
                "name": asked.get("name"),
                "displayName": "",
                "config": "{}",
                "project": project,
            }
            return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": 0}, "inserted": True}}
        if "viewer" in body:
            return {"viewer": {"id": "v", "entity": "someone", "flags": "{}", "teams": {"edges": []}}}
        if "createRunFiles" in body:
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}
        if "query ArtifactType" in body:
            return {"project": {"artifact": None}}
        return {}

    def close(self) -> None:
        """Let go of the waiting requests and close the port."""
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def fake_wandb() -> Iterator[FakeWandb]:
    """A W&B server that answers, until it is told otherwise."""
    server = FakeWandb()
    yield server
    server.close()


@pytest.fixture
def silent_port() -> Iterator[str]:
    """The address of a server that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def dead_port() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"http://127.0.0.1:{port}"

"""A home of its own for each test, and servers that behave badly."""

import json
import os
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp(prefix="posenc-trackio-")  # read when trackio is imported


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No key, no settings, no netrc and no proxy of the user's; wandb starts anew in every test."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in [*os.environ]:
        if name.startswith("WANDB_") or name.lower().endswith("_proxy") or name == "NETRC":
            monkeypatch.delenv(name)
    # set through monkeypatch, so that what posenc sets by default is undone as well
    quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
    for name, value in {**quiet, "WANDB_DATA_DIR": f"{tmp_path}/staging", "HOME": str(folder)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield folder
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


class FakeWandb:
    """Enough of a W&B server for a run to start. `state`: ok or hanging."""

    def __init__(self):
        self.state, self.requests, self.release = "ok", [], threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode(errors="replace")
                fake.requests.append(body)
                if fake.state == "hanging":
                    fake.release.wait(60)
                    self.close_connection = True
                    return
                content = {"data": answer(body)} if "graphql" in self.path else {}
                text = b"" if self.command == "HEAD" else json.dumps(content).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_HEAD = do_POST  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        """Let go of the waiting requests and close the port."""
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


def answer(body):
    """Return the data of a GraphQL operation, and of others that its text names."""
    project = {"id": "p", "name": "posenc", "entity": {"id": "e", "name": "someone"}}
    bucket = {"id": "b", "name": json.loads(body).get("variables", {}).get("name"), "displayName": ""}
    bucket |= {"config": "{}", "project": project, "historyLineCount": 0}
    answers = {
        "upsertBucket": {"bucket": bucket, "inserted": True},
        "viewer": {"id": "v", "entity": "someone", "flags": "{}", "teams": {"edges": []}},
        "createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []},
    }
    return {name: data for name, data in answers.items() if name in body}


@pytest.fixture
def fake_wandb():
    """A W&B server that answers, until it is told otherwise."""
    server = FakeWandb()
    yield server
    server.close()


stranger = fake_wandb  # another one

"""A small hub on this machine: data set repositories of files, at one commit, over HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee00" * 5


class Hub(ThreadingHTTPServer):
    """Serves `folder` as the data set `repository`. `breaks_after`: bytes of file content before it dies."""

    daemon_threads = True

    def __init__(self, repository: str, folder: Path, breaks_after: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repository, self.folder, self.left = repository, folder, breaks_after
        self.asked: list[str] = []
        self.sent = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self) -> list[dict[str, Any]]:
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [
            {
                "type": "file",
                "path": path.relative_to(self.folder).as_posix(),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in paths
        ]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.answer(body=True, posted=content)

    def answer(self, body: bool, posted: str = "") -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {self.path}")
        api, files = f"/api/datasets/{hub.repository}", hub.files()
        if path == api or path.startswith(f"{api}/revision/"):
            revision = path.rpartition("/revision/")[2] if "/revision/" in path else "main"
            if revision not in ("main", COMMIT):
                return self.missing("RevisionNotFound")
            siblings = [{"rfilename": file["path"]} for file in files]
            return self.give({"id": hub.repository, "sha": COMMIT, "siblings": siblings, "tags": []})
        if path.startswith(f"{api}/paths-info/"):
            form = parse_qs(posted)
            wanted = json.loads(posted)["paths"] if posted.startswith("{") else form.get("paths", [])
            found = [file for file in files if file["path"] in wanted]
            folders = [w for w in wanted if any(f["path"].startswith(f"{w}/") for f in files)]
            return self.give(found + [{"type": "directory", "path": w, "oid": "0" * 40} for w in folders])
        if path.startswith(f"{api}/tree/"):
            inside = path.removeprefix(f"{api}/tree/").partition("/")[2].strip("/")
            below = [f for f in files if f["path"].startswith(f"{inside}/" if inside else "")]
            if "recursive=True" in self.path or "recursive=true" in self.path:
                return self.give(below)
            start = len(inside) + 1 if inside else 0
            names = sorted({f["path"][start:].split("/")[0] for f in below if "/" in f["path"][start:]})
            here = [f for f in below if "/" not in f["path"][start:]]
            prefix = f"{inside}/" if inside else ""
            return self.give(
                [{"type": "directory", "path": prefix + n, "oid": "0" * 40} for n in names] + here
            )
        start = f"/datasets/{hub.repository}/resolve/"
        name = path.removeprefix(start).partition("/")[2]
        if path.startswith(start) and (hub.folder / name).is_file():
            return self.file(hub.folder / name, body)
        return self.missing("EntryNotFound" if path.startswith((start, api)) else "RepoNotFound")

    def give(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def missing(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def file(self, path: Path, body: bool) -> None:
        content, span = path.read_bytes(), self.headers.get("Range")
        first, last = 0, len(content) - 1
        if span:
            a, _, b = span.removeprefix("bytes=").partition("-")
            first, last = int(a), min(last, int(b) if b else last)
        part = content[first : last + 1]
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if not body:
            return
        hub = self.server
        if hub.left is not None:
            part, hub.left = part[: hub.left], max(0, hub.left - len(part))
        hub.sent += len(part)
        self.wfile.write(part)
        if hub.left == 0:
            self.close_connection = True


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Answers until the end of the block."""
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()

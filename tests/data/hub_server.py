"""A small hub on this machine: one data set repository at one commit, over HTTP."""

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
    """Serve `folder` as the data set `repository`. `left`: bytes of file content before it breaks off."""

    daemon_threads = True

    def __init__(self, repository: str, folder: Path, left: int = 10**9) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repository, self.folder, self.left = repository, folder, left
        self.asked: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that goes away."""


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        posted = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        hub.asked.append(path)
        api, start = f"/api/datasets/{hub.repository}", f"/datasets/{hub.repository}/resolve/"
        found = [
            {"type": "file", "path": file.relative_to(hub.folder).as_posix(), "size": file.stat().st_size,
             "oid": hashlib.sha1(file.read_bytes()).hexdigest()}
            for file in sorted(hub.folder.rglob("*.parquet"))
        ]  # fmt: skip
        data = {"type": "directory", "path": "data", "oid": "0" * 40}
        if path == api or path.startswith(f"{api}/revision/"):
            if path.removeprefix(api) not in ("", "/revision/main", f"/revision/{COMMIT}"):
                return self.reply(404, {"X-Error-Code": "RevisionNotFound"})
            siblings = [{"rfilename": file["path"]} for file in found]
            return self.give({"id": hub.repository, "sha": COMMIT, "siblings": siblings, "tags": []})
        if path.startswith(f"{api}/paths-info/"):
            wanted = json.loads(posted)["paths"] if posted.startswith("{") else parse_qs(posted)["paths"]
            return self.give([file for file in [*found, data] if file["path"] in wanted])
        if path.startswith(f"{api}/tree/"):
            inside = path.endswith("/data") or "recursive=true" in self.path.lower()
            return self.give(found if inside else [data])
        name = path.removeprefix(start).partition("/")[2]
        if path.startswith(start) and (hub.folder / name).is_file():
            return self.file((hub.folder / name).read_bytes())
        code = "EntryNotFound" if path.startswith((start, api)) else "RepoNotFound"
        return self.reply(404, {"X-Error-Code": code})

    do_HEAD = do_POST = do_GET  # noqa: N815

    def give(self, value: Any) -> None:
        self.reply(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def file(self, content: bytes) -> None:
        first, last = 0, len(content) - 1
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        if span := self.headers.get("Range"):
            a, _, b = span.removeprefix("bytes=").partition("-")
            first, last = int(a), min(last, int(b) if b else last)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self.reply(206 if span else 200, headers, content[first : last + 1], limited=True)

    def reply(self, code: int, headers: dict[str, str], body: bytes = b"", *, limited: bool = False) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if limited:
            body, self.server.left = body[: self.server.left], max(0, self.server.left - len(body))
            self.close_connection = not self.server.left
        self.wfile.write(body)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()

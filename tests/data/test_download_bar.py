"""Downloads from the hub: a progress by bytes, from a server in this process that answers as the hub."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from corpora import conf, documents_of, story
from huggingface_hub import constants

from posenc.data.download_bar import download_bar
from posenc.data.tokenizers import _download

FILE = b"{" + b" " * 24_999_998 + b"}"  # more than two chunks of the library, of 10.5 MB


class Hub(BaseHTTPRequestHandler):
    """Answer for one file, whatever its name."""

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(FILE)))
        self.send_header("ETag", f'"{hashlib.sha256(FILE).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(FILE)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    # made of the address when the library is imported
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def all_lines(monkeypatch):
    monkeypatch.setenv("POSENC_PROGRESS", "0")


def test_a_download_counts_its_bytes(server, all_lines, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert _download("me/words", "main").read_bytes() == FILE
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[0] for line in lines] == [
        "downloading me/words 10.5/25.0 MB",
        "downloading me/words 21.0/25.0 MB",
        "downloading me/words 25.0/25.0 MB",
    ]


def test_the_total_of_several_files_grows(all_lines, capsys):
    with download_bar("me/model")(desc="Downloading", total=0, unit="B", unit_scale=True) as bar:
        bar.total += 300_000_000
        bar.refresh()
        bar.update(100_000_000)
    assert capsys.readouterr().err.splitlines()[-1].startswith("downloading me/model 100/300 MB")


def test_files_are_not_counted(all_lines, capsys):
    with download_bar("me/model")(desc="Fetching 3 files", total=3) as bar:
        bar.update()
    assert bar.n == 1
    assert capsys.readouterr().err == ""


# --- Text

CARD = """---
dataset_info:
  features: [{name: text, dtype: string}]
  splits:
  - {name: train, num_bytes: 4000, num_examples: 60}
  - {name: validation, num_bytes: 4000, num_examples: 20}
---
"""


def lines_of_reading(capsys, settings):
    documents_of(settings)
    return [line.partition("  ")[0] for line in capsys.readouterr().err.splitlines()]


def test_a_text_is_read_up_to_its_limit_of_bytes(repository, all_lines, capsys):
    lines = lines_of_reading(capsys, conf("tinystories", repository=str(repository()), bytes=2000))
    assert all(line.endswith("/2.0 kB") for line in lines)


def test_a_text_is_read_up_to_the_size_on_its_card(repository, all_lines, capsys):
    folder = repository(columns=["text"])
    (folder / "README.md").write_text(CARD)
    lines = lines_of_reading(capsys, conf("tinystories", repository=str(folder), bytes=None))
    read = sum(len(story(i).encode()) for i in range(48))  # three batches of sixteen
    assert lines[2].endswith(f" (train) {read / 1000:.1f}/4.0 kB")


def test_a_text_of_unknown_size_counts_bytes_alone(repository, all_lines, capsys):
    lines = lines_of_reading(capsys, conf("tinystories", repository=str(repository()), bytes=None))
    assert lines[0].endswith(" kB")
    assert "/" not in lines[0].rpartition(") ")[2]

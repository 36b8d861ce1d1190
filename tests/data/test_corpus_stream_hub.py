"""Streams from a hub over HTTP, and without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, serving
from streams import Repository


def posenc(hub: Hub, *arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """The command with this hub for a hub."""
    start = f"{code}\nimport sys\nfrom posenc import cli\ncli.main()"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_TELEMETRY": "1"},
    )


def test_over_http_and_then_without_it(repository: Repository) -> None:
    """`data prepare` from a hub that answers, with a branch for a revision; then info with no hub."""
    with serving(Hub("roneneldan/TinyStories", repository())) as hub:
        asked = ("data=tinystories", "data.revision=main", "tokenizer=bpe", "tokenizer.vocab_size=290")
        done = posenc(hub, "data", "prepare", *asked)
        assert done.returncode == 0, done.stderr
        assert "tokens of bpe" in done.stderr and "need no network" in done.stderr
        assert any(f"resolve/{COMMIT}/data/train-00000" in line for line in hub.asked)
        count = len(hub.asked)
        info = posenc(hub, "data", "info", "data=tinystories", f"data.revision={COMMIT}", "--json")
        assert len(hub.asked) == count  # the same commit: nothing is asked
    offline = posenc(hub, "data", "info", *asked, "--json")  # the address answers no more
    assert offline.returncode == info.returncode == 0, offline.stderr + info.stderr
    facts = json.loads(offline.stdout)
    assert facts == json.loads(info.stdout)
    assert facts["identity"]["revision"] == COMMIT and facts["splits"]["train"]["documents"] == 60
    assert {row["tokenizer"] for row in facts["cached"]} == {"bytes", "bpe"}


@pytest.mark.slow
def test_a_hub_that_breaks_off_leaves_nothing(repository: Repository, cache: Path) -> None:
    text = {"train": [os.urandom(6000).hex() for _ in range(60)], "validation": ["x" * 99] * 9}
    folder = repository(rows=text, group=5)
    with serving(Hub("roneneldan/TinyStories", folder, breaks_after=250_000)) as hub:
        patient = "import time\ntime.sleep = lambda _: None"
        done = posenc(hub, "data", "info", "data=tinystories", "data.revision=main", code=patient)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert "could not be loaded" in done.stderr and "ways out" in done.stderr
        assert hub.sent >= 250_000
        assert not [path for path in (cache / "tokens").iterdir() if path.is_dir()]
        hub.left = None
        assert posenc(hub, "data", "info", "data=tinystories", "data.revision=main").returncode == 0


@pytest.mark.slow
def test_a_hub_that_knows_no_such_revision_or_data_set(repository: Repository) -> None:
    with serving(Hub("roneneldan/TinyStories", repository())) as hub:
        for change in ("data.revision=v9", ""):
            done = posenc(hub, "data", "info", "data=tinystories", *([change] if change else []))
            assert done.returncode == 2 and "data.revision" in done.stderr
        done = posenc(hub, "data", "info", "data=pg19")
        assert done.returncode == 2 and "data.repository" in done.stderr


@pytest.mark.parametrize("change", [(), pytest.param(("data.revision=main",), marks=[pytest.mark.slow])])
def test_out_of_reach_is_said_in_two_lines_and_soon(tmp_path: Path, change: tuple[str, ...]) -> None:
    hub = Hub("a/b", tmp_path)
    hub.server_close()
    began = time.monotonic()
    done = posenc(hub, "data", "prepare", "data=fineweb_edu", *change)
    assert done.returncode == 1 and len(done.stderr.strip().split("\n")) == 2
    assert "fineweb-edu" in done.stderr and "data=files" in done.stderr
    assert time.monotonic() - began < 90


@pytest.mark.slow
def test_a_copy_in_the_librarys_cache_is_read_without_network(repository: Repository, tmp_path: Path) -> None:
    """Loaded once by the library from a hub, then read by us with no hub: only of the same revision."""
    load = "import datasets; datasets.load_dataset('roneneldan/TinyStories', revision='main')"
    with serving(Hub("roneneldan/TinyStories", repository())) as hub:
        env = {**os.environ, "HF_ENDPOINT": hub.address}
        subprocess.run([sys.executable, "-c", load], check=True, capture_output=True, env=env)
    done = posenc(hub, "data", "info", "data=tinystories", f"data.revision={COMMIT}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["splits"]["train"]["documents"] == 60
    done = posenc(hub, "data", "info", "data=tinystories")
    assert done.returncode == 1 and "out of reach" in done.stderr

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir
from posenc.data import CorpusFacts, Document, prepare, read_documents, read_facts
from posenc.data.hub_access import reachable, unreachable
from posenc.data.registry import absolute_data, pinned_identity
from posenc.data.sources import hub

ROWS = [
    "", " = First = \n", "", " Some text with 1 @,@ 000 . \n", "", " = = Section = = \n", "", " More . \n",
    " = not a title , inside a table = \n", "", " = = = Deeper = = = \n", "", " = Second : x = y = \n", "",
    " = Third = \n", "", " End . \n",
]  # fmt: skip


def wikitext() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((conf_dir() / "data" / "wikitext2.yaml").read_text())
    return data


def test_articles_are_put_together_at_titles() -> None:
    found = hub.articles(ROWS)
    assert [text.strip().split("\n")[0].strip() for text in found] == ["= First =", "= Third ="]
    assert "= = Section = =" in found[0] and "inside a table" in found[0] and "Deeper" in found[0]
    assert found[1] == " = Third = \n\n End . \n"


def test_articles_keep_every_character() -> None:
    rows = ["lost \n", "", " = A = \n", "", "text \n", ""]
    assert hub.articles(rows) == ["lost \n\n", " = A = \n\ntext \n\n"]
    assert hub.articles([]) == []
    assert hub.articles(["", ""]) == []


def test_the_hub_out_of_reach_is_said_in_two_lines_and_soon(tmp_path: Path) -> None:
    code = (
        "import yaml; from posenc.data import read_documents; from posenc.core.errors import RunError\n"
        f"data = yaml.safe_load(open({str(conf_dir() / 'data' / 'wikitext2.yaml')!r}))\n"
        "try: read_documents(data)\n"
        "except RunError as error: print(error.text())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = out.stdout.strip().split("\n")
    assert len(lines) == 2 and "Traceback" not in out.stderr
    assert "Salesforce/wikitext" in lines[0] and "127.0.0.1:9" in lines[0]
    assert "data=files" in lines[1] and "posenc data prepare" in lines[1]


def test_cached_copies_load_offline_and_only_of_the_pinned_revision(tmp_path: Path) -> None:
    """A cache as the library leaves it behind, read with a hub that is not there."""
    code = f"""
import datasets, pathlib, shutil, yaml
from posenc.data import read_documents
from posenc.core.errors import RunError
data = yaml.safe_load(open({str(conf_dir() / "data" / "wikitext2.yaml")!r}))
rows = [{{"text": row}} for row in {ROWS!r}]
home = pathlib.Path(datasets.config.HF_DATASETS_CACHE)
made = home / "Salesforce___wikitext" / data["config"] / "0.0.0" / data["revision"]
made.mkdir(parents=True)
info = datasets.DatasetInfo(features=datasets.Features({{"text": datasets.Value("string")}}))
info.builder_name, info.dataset_name, info.config_name = "parquet", "wikitext", data["config"]
info.version, info.splits = "0.0.0", datasets.SplitDict(dataset_name="wikitext")
for split in ("train", "validation", "test"):
    from datasets.arrow_writer import ArrowWriter
    with ArrowWriter(features=info.features, path=str(made / f"wikitext-{{split}}.arrow")) as writer:
        for row in rows: writer.write(row)
        count, size = writer.finalize()
    info.splits.add(datasets.SplitInfo(split, size, count, dataset_name="wikitext"))
info.write_to_directory(str(made))
found = read_documents(data)
print([d.id for d in found])
made.rename(made.with_name("0" * 40))
try: print(read_documents(data))
except RunError as error: print(error.text())
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    ids, *refused = out.stdout.strip().split("\n")
    assert ids == str([f"{split}/{i:08d}" for split in ("test", "train", "validation") for i in (0, 1)])
    assert "revision b08601e0" in refused[0] and len(refused) == 2


def test_probing_a_dead_or_silent_hub_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    assert not reachable()
    monkeypatch.setenv("HF_ENDPOINT", "https://no-such-host.invalid")
    assert not reachable()
    monkeypatch.setenv("HF_ENDPOINT", "http://[broken")
    assert not reachable()
    assert time.monotonic() - started < 25


def test_a_password_in_the_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://me:secret@mirror.test")
    text = unreachable("it", "none").text()
    assert "mirror.test" in text and "secret" not in text


def test_a_hub_that_answers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert reachable()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert not reachable()


def test_a_pinned_corpus_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []

    def fake(repository: str, config: str | None, revision: str) -> Any:
        loads.append(revision)
        return {split: FakeSplit() for split in ("train", "validation", "test")}

    monkeypatch.setattr(hub, "_load", fake)
    first = read_facts(wikitext())
    store = prepare(wikitext(), {"name": "bytes"}, first)
    assert len(loads) == 1 and first.loaded is None
    again = read_facts(wikitext())
    warm = prepare(wikitext(), {"name": "bytes"}, again)
    assert len(loads) == 1
    assert (again.fingerprint, again.bytes, again.longest) == (first.fingerprint, first.bytes, first.longest)
    assert again.identity["revision"] == wikitext()["revision"] and "fingerprint" not in again.identity
    assert warm.fingerprint == store.fingerprint
    read_facts({**wikitext(), "revision": "main"})  # not pinned: looked at each time
    unpinned = read_facts({**wikitext(), "revision": "main"})
    assert len(loads) == 3 and unpinned.identity["fingerprint"] == first.fingerprint
    assert isinstance(unpinned, CorpusFacts)


class FakeSplit:
    column_names = ("text",)

    def __getitem__(self, field: str) -> list[str]:
        return ROWS


def test_splits_are_the_data_sets_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_load", lambda *_: {"train": FakeSplit(), "test": FakeSplit(), "extra": None})
    found = read_documents(wikitext())
    assert [(d.id, d.split) for d in found] == [
        ("test/00000000", "test"), ("test/00000001", "test"),
        ("train/00000000", "train"), ("train/00000001", "train"),
    ]  # fmt: skip
    assert all(isinstance(d, Document) for d in found)
    with pytest.raises(UserError, match="splits of its own"):
        read_documents({**wikitext(), "split": {"validation": 0.1, "test": 0.1}})
    with pytest.raises(UserError, match=r"data\.text_field"):
        read_documents({**wikitext(), "text_field": "txt"})


def test_a_folder_is_never_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text may change, and another folder may have the name."""
    monkeypatch.chdir(tmp_path)
    data = {**wikitext(), "repository": "copy"}
    assert pinned_identity(data) is not None
    (tmp_path / "copy").mkdir()
    assert pinned_identity(data) is None
    assert absolute_data(data)["repository"] == str(tmp_path / "copy")

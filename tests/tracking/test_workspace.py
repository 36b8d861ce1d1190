from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fake_wandb_server import FakeWandb

from posenc.core.errors import RunError, UserError
from posenc.tracking.workspace import make_dashboard

KEY = "k" * 40
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of that package's own models
pytest.importorskip("wandb_workspaces", reason="needs posenc[dashboard]")


def make(entity: str | None = "someone", **changes: Any) -> None:
    given: dict[str, Any] = {"project": "mine", "protocol": "fixed-target", "length": "8x", "out": None}
    make_dashboard(entity, **{**given, **changes})


def view_of(place: Path, **changes: Any) -> dict[str, Any]:
    make(out=str(place / "view.json"), **changes)
    found: dict[str, Any] = json.loads((place / "view.json").read_text())
    return found


def panels(view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings of every panel, by its title or kind."""
    bank = view["spec"]["section"]["panelBankConfig"]
    found = [panel for section in bank["sections"] for panel in section["panels"]]
    return {panel["config"].get("chartTitle") or panel["viewType"]: panel["config"] for panel in found}


def test_the_workspace_compares_encodings_over_seeds(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    assert (view["entity"], view["project"]) == ("someone", "mine")
    shown = panels(view)
    by_encoding = {"groupBy": "encoding.value.name", "groupAgg": "mean", "groupArea": "stddev"}
    for title, metric, axis in (
        ("fixed-target: nats per token against context", "eval/fixed-target/nats", "eval/window"),
        ("nats per token by position", "eval/positions/nats-by-position", "eval/position"),
        ("fixed-target: nats per token at 8x", "eval/fixed-target/nats@8x", None),
        ("training: loss", "train/loss", "train/tokens"),
    ):
        assert by_encoding.items() <= shown[title].items() and shown[title]["metrics"] == [metric]
        assert shown[title].get("xAxis") == axis or axis is None
    assert {"Run Comparer", "plots"} <= set(shown)


def test_its_metrics_are_those_that_runs_are_tracked_with(tmp_path: Path) -> None:
    from fake_runs import positions, record

    from posenc.tracking.metrics import by_position, by_window, summary

    view = view_of(tmp_path, protocol="sliding", length="0.50x")
    records = [
        dict(record(32, 1.0, protocol="sliding")),
        dict(record(64, 1.0, protocol="sliding")),
        positions(),
    ]
    tracked = {name for row in [*by_window(records, {}), *by_position(records, {})] for name in row}
    tracked |= set(summary(records, {})) | {f"train/{name}" for name in ("loss", "lr", "grad_norm", "tokens")}
    for title, panel in panels(view).items():
        drawn = [*panel.get("metrics", []), *([panel["xAxis"]] if "xAxis" in panel else [])]
        assert set(drawn) - {"train/tokens_per_second"} <= tracked, title


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"length": "0x"}, "--length"),
        ({"out": "no/such/folder/x"}, "--out"),
        ({"protocol": "bogus"}, "--protocol"),
    ],
)
def test_wrong_input_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as caught:
        make(**changes)
    assert caught.value.key == key


@pytest.mark.parametrize("entity", ["someone", None])
def test_it_is_saved_and_its_address_printed(
    entity: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fake_wandb: FakeWandb,
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", fake_wandb.url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    make(out=str(tmp_path / "view.json"))  # written to a file, nothing is sent
    assert json.loads((tmp_path / "view.json").read_text())["project"] == "mine"
    assert capsys.readouterr().out == "" and fake_wandb.requests == []
    make(entity)
    assert "/someone/mine?nw=" in capsys.readouterr().out
    (sent,) = [json.loads(body)["variables"] for body in fake_wandb.requests if "upsertView" in body]
    assert (sent["entityName"], sent["projectName"]) == ("someone", "mine")
    assert "encoding.value.name" in sent["spec"]


@pytest.mark.slow
@pytest.mark.parametrize("state", ["dead", "unauthorized"])
def test_a_server_that_is_gone_or_refuses_is_one_error_within_seconds(
    state: str, monkeypatch: pytest.MonkeyPatch, fake_wandb: FakeWandb, dead_port: str
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", dead_port if state == "dead" else fake_wandb.url)
    with pytest.raises(UserError, match=r"(?s)no W&B API key for .*wandb login"):
        make()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    fake_wandb.state, begun = "unauthorized", time.monotonic()
    with pytest.raises(RunError, match="does not answer" if state == "dead" else "refuses") as caught:
        make()
    assert time.monotonic() - begun < 15 and KEY not in caught.value.text()

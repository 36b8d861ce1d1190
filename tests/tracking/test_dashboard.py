"""The W&B workspace: it groups by encoding, and draws what runs are tracked with."""

import json

import pytest
from fake_runs import positions, record
from tracked import CONFIG

from posenc.tracking.curves import curve_points, rows_by_axis, summary_of
from posenc.tracking.dashboard import make_dashboard

# of that package's own models
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def view(tmp_path):
    pytest.importorskip("wandb_workspaces", reason="needs posenc[dashboard]")
    make_dashboard("someone", "mine", "sliding", "0.50x", str(tmp_path / "view.json"))
    return json.loads((tmp_path / "view.json").read_text())


@pytest.fixture
def panels(view):
    bank = view["spec"]["section"]["panelBankConfig"]
    return [panel["config"] for section in bank["sections"] for panel in section["panels"]]


def test_a_workspace_belongs_to_entity_and_project(view):
    assert view["entity"] == "someone"
    assert view["project"] == "mine"


def test_every_panel_groups_by_encoding_with_bands_over_seeds(panels):
    by_encoding = {"groupBy": "encoding.value.name", "groupAgg": "mean", "groupArea": "stddev"}
    assert panels
    assert all(by_encoding.items() <= panel.items() for panel in panels)


def tracked_names():
    """The names of all figures that a run with this protocol is tracked with."""
    records = [dict(record(window, 1.0, protocol="sliding")) for window in (32, 64)]
    points = curve_points([*records, dict(positions())], CONFIG)
    losses = {"train/loss", "train/validation_loss"}
    names = {"eval/window", "eval/position", "train/tokens", *losses, *summary_of(points)}
    for rows in rows_by_axis(points).values():
        for row in rows.values():
            names |= set(row)
    return names


def test_panels_draw_what_runs_are_tracked_with(panels):
    for panel in panels:
        assert set(panel["metrics"]) <= tracked_names(), panel["chartTitle"]
        assert panel.get("xAxis", "train/loss") in tracked_names(), panel["chartTitle"]

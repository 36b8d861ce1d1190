import json

import pytest
from fake_runs import positions, record

from posenc.tracking.base import by_position, by_window, curves_of, summary
from posenc.tracking.wandb import make_dashboard

KEY = "k" * 40
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of that package's own models
pytest.importorskip("wandb_workspaces", reason="needs posenc[dashboard]")


def make(entity="someone", **changes):
    given = {"project": "mine", "protocol": "fixed-target", "length": "8x", "out": None}
    make_dashboard(entity, **{**given, **changes})


def test_the_workspace_compares_encodings_by_what_runs_are_tracked_with(tmp_path):
    make(out=str(tmp_path / "view.json"), protocol="sliding", length="0.50x")
    view = json.loads((tmp_path / "view.json").read_text())
    assert (view["entity"], view["project"]) == ("someone", "mine")
    bank = view["spec"]["section"]["panelBankConfig"]
    panels = [panel["config"] for section in bank["sections"] for panel in section["panels"]]
    by_encoding = {"groupBy": "encoding.value.name", "groupAgg": "mean", "groupArea": "stddev"}
    assert len(panels) == 5 and all(by_encoding.items() <= panel.items() for panel in panels)
    records = [dict(record(w, 1.0, protocol="sliding")) for w in (32, 64)]
    curves = curves_of([*records, dict(positions())], {})
    rows = [*by_window(curves).values(), *by_position(curves).values(), summary(curves)]
    tracked = {name for row in rows for name in row}
    tracked |= {"eval/window", "eval/position", "train/loss", "train/tokens"}
    for panel in panels:
        drawn = [*panel["metrics"], *([panel["xAxis"]] if "xAxis" in panel else [])]
        assert set(drawn) <= tracked, panel["chartTitle"]

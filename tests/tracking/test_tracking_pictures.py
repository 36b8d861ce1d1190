from __future__ import annotations

from pathlib import Path

import pytest
from fake_runs import positions, record, write_run

from posenc.core.errors import UserError
from posenc.tracking.pictures import Pictures, as_files, check_plots

KINDS = ["context", "change", "positions", "heatmap", "probes", "training"]


def test_plots_of_what_was_measured_are_pngs(tmp_path: Path) -> None:
    run = write_run(tmp_path, records=[record(64, 1.0), record(512, 1.5), positions()])
    drawn = Pictures(run).png(KINDS)
    assert list(drawn) == ["context", "change", "positions", "heatmap"]
    assert all(png.startswith(b"\x89PNG") for png in drawn.values())
    with as_files(drawn) as files:
        assert {kind: Path(file).read_bytes() for kind, file in files.items()} == drawn
    assert not Path(files["context"]).exists()


def test_a_run_of_which_nothing_is_known_has_no_plots_and_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Pictures(tmp_path / "nowhere").png(KINDS) == {}
    assert Pictures(write_run(tmp_path, results=False)).png(KINDS) == {}
    assert caplog.records == []


def test_a_plot_that_fails_is_one_warning_and_the_others_are_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import posenc.report.plots as plots

    drawing = plots.plot_bytes

    def failing(format: str, kind: str, *rest: object) -> bytes:
        if kind == "change":
            raise ZeroDivisionError("no width\nat all")
        return drawing(format, kind, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(plots, "plot_bytes", failing)
    pictures = Pictures(write_run(tmp_path))
    for _ in range(2):  # two trackers of one run
        assert list(pictures.png(["change", "context"])) == ["context"]
    (line,) = [one.getMessage() for one in caplog.records]
    assert "plot change" in line and "ZeroDivisionError: no width" in line and "\n" not in line


def test_a_plot_that_there_is_none_of_is_refused() -> None:
    check_plots(KINDS)
    check_plots([])
    with pytest.raises(UserError, match="did you mean: positions"):
        check_plots(["position"])

"""Papers' numbers beside a comparison."""

import math
import sys

import pytest
from fake_runs import T, recall_records, record, write_run

from posenc.core.errors import UserError
from posenc.report.against import against, published, show_against, tables
from posenc.results import load_runs

MULTIPLES = (1, 2, 4, 8)
DISTANCES = (8, 32, 56, 112, 224, 448)  # three within T, then the farthest of 2T, 4T and 8T
FOUND = {  # of 100 values
    "rope": dict(zip(DISTANCES, (100, 98, 96, 62, 14, 5), strict=True)),
    "alibi": dict(zip(DISTANCES, (2, 2, 2, 2, 1, 0), strict=True)),  # did not learn
}


def test_every_table_stands_beside_runs(tmp_path):
    for name in ("rope", "alibi"):
        records = [record(m * T, 1.2 + 0.1 * m, protocol="nonoverlapping") for m in MULTIPLES]
        write_run(tmp_path, name, records=[*records, *recall_records(FOUND[name])])
    runs = load_runs([tmp_path])
    assert len(published()) > 800
    shares = [row for row in published() if row["metric"] == "accuracy"]
    assert all(row["number"] > 0 for row in published() if row not in shares)
    assert all(0 <= row["number"] == row["value"] <= 1 for row in shares)
    places = [(row["table"], row["encoding"], row["train_length"], row["eval_length"]) for row in published()]
    assert len({*places}) == len(places)
    for table in tables():
        own = [row for row in published() if row["table"] == table]
        assert len({row["metric"] for row in own}) == 1 and len(against(runs, table)["rows"]) == len(own)
    found = against(runs, "alibi-table2")
    t, far = [one for one in found["rows"] if one["encoding"] == "rope" and one["multiple"]][:2]
    assert (t["published"], t["published_change"], t["measured"]) == (20.07, None, pytest.approx(1.3))
    assert (far["multiple"], far["published_length"]) == (2, 1012)  # the nearest to twice 512
    assert far["published_change"] == pytest.approx(math.log(far["published"] / t["published"]))
    assert far["measured_change"] == pytest.approx(0.1)
    assert far["difference"] == pytest.approx(0.1 - far["published_change"])
    assert "not measured: sinusoidal, t5" in " ".join(found["notes"])
    with pytest.raises(UserError, match="did you mean: alibi-table2"):
        against(runs, "alibi-tabel2")


def test_accuracies_stand_beside_recall(tmp_path, capsys):
    for name, found in FOUND.items():
        write_run(tmp_path, name, records=[record(T, 1.2), *recall_records(found)])
    runs = load_runs([tmp_path])
    found = against(runs, "scale-invariant-needle")
    rows = {(row["encoding"], row["multiple"]): row for row in found["rows"] if row["multiple"]}
    assert {multiple for _, multiple in rows} == {1, 4}  # 16x was not measured
    t, far = rows["rope", 1], rows["rope", 4]
    assert (t["published"], t["measured"], t["measured_change"]) == (0.962, pytest.approx(0.98), None)
    assert (far["published"], far["measured"]) == (0, 0.14)
    assert far["published_change"] == pytest.approx(-0.962)
    assert far["measured_change"] == pytest.approx(0.14 - 0.98)
    assert far["difference"] == pytest.approx(0.962 - 0.84)
    weak = rows["alibi", 4]
    assert (weak["published"], weak["measured"], weak["measured_change"]) == (0.02, 0.01, None)
    notes = " ".join(found["notes"])
    assert "did not learn to recall within T, so without a change: alibi" in notes
    assert "fine-tuned for 300 steps there, recall here" in notes
    show_against(found, "markdown", sys.stdout)
    text = capsys.readouterr().out
    assert "0.140 | -0.840 |" in text
    assert "nats" not in text
    write_run(tmp_path / "losses", "rope", records=[record(T, 1.2)])
    with pytest.raises(UserError, match="no run was asked to recall"):
        against(load_runs([tmp_path / "losses"]), "scale-invariant-needle")

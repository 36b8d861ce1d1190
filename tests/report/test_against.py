"""Papers' numbers beside a comparison."""

import math

import pytest
from fake_runs import T, record, write_run

from posenc.core.errors import UserError
from posenc.report.against import against, published, tables
from posenc.results import load_runs

MULTIPLES = (1, 2, 4, 8)


def test_every_table_stands_beside_runs(tmp_path):
    for name in ("rope", "alibi"):
        records = [record(m * T, 1.2 + 0.1 * m, protocol="nonoverlapping") for m in MULTIPLES]
        write_run(tmp_path, name, records=records)
    runs = load_runs([tmp_path])
    assert len(published()) > 500 and all(row["nats"] > 0 for row in published())
    for table in tables():
        own = [row for row in published() if row["table"] == table]
        assert len(against(runs, table)["rows"]) == len(own)
    found = against(runs, "alibi-table2")
    t, far = [one for one in found["rows"] if one["encoding"] == "rope" and one["multiple"]][:2]
    assert (t["published"], t["published_change"], t["measured"]) == (
        20.07,
        None,
        pytest.approx(1.3),
    )
    assert (far["multiple"], far["published_length"]) == (2, 1012)  # the nearest to twice 512
    assert far["published_change"] == pytest.approx(math.log(far["published"] / t["published"]))
    assert far["measured_change"] == pytest.approx(0.1)
    assert far["difference"] == pytest.approx(0.1 - far["published_change"])
    assert "not measured: sinusoidal, t5" in " ".join(found["notes"])
    with pytest.raises(UserError, match="did you mean: alibi-table2"):
        against(runs, "alibi-tabel2")


def test_the_nearest_protocol_is_taken_and_extensions_are_rows(tmp_path):
    yarn = {"name": "yarn", "factor": "auto", "ramp": "index", "mscale_all_dim": 0.0}
    records = [record(T, 1.2), record(4 * T, 3.0), record(4 * T, 1.4, extend=yarn)]
    write_run(tmp_path, "rope", records=records)
    found = against(load_runs([tmp_path]), "scale-invariant-table1")
    measured = {one["encoding"]: one["measured"] for one in found["rows"] if one["multiple"] == 4}
    assert measured["rope"] == 3.0 and measured["rope+yarn"] == pytest.approx(1.4)
    assert "protocols differ" in " ".join(against(load_runs([tmp_path]), "alibi-table2")["notes"])
    for base in (5.0, 6.0):  # neither is the one row of the paper
        write_run(tmp_path / "bases", "rope", records=records, params={"base": base})
    found = against(load_runs([tmp_path / "bases"]), "scale-invariant-table1")
    assert {one["measured"] for one in found["rows"] if one["encoding"] == "rope"} == {None}

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

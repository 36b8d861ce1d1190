"""docs/schema.md is what the types say, and names every field of a real document."""

import json
import re
import subprocess
import sys

import pytest
import tiny

PAGE = tiny.ROOT / "docs" / "schema.md"
LISTS = {"columns": "Column", "rows": "Row", "probes": "ProbeColumn"}


def described():
    """The fields of each type on the page."""
    sections = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {one.splitlines()[0]: set(re.findall(r"^\| `(\w+)` \|", one, re.M)) for one in sections}


@pytest.mark.parametrize("name", ["schema", "encodings"])
def test_the_page_is_what_its_script_writes(name):
    code = f"import sys; sys.path[:0] = ['scripts']; import {name}_page as s; print(s.page(), end='')"
    command = [sys.executable, "-c", code]
    made = subprocess.run(command, capture_output=True, text=True, cwd=tiny.ROOT, check=True)
    page = (tiny.ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert made.stdout == page, f"run python scripts/{name}_page.py"


def test_every_field_on_disk_is_described(trained_once):
    (path,) = trained_once.rglob("results.json")
    results = json.loads(path.read_text())
    fields = described()
    assert set(results) == {"schema_version", "run", "records"}
    assert set(results["run"]) <= fields["RunFacts"]
    for record in results["records"]:
        assert (
            set(record) <= fields["Record"]
            and set(record["per_document"]) | {"group"} == fields["PerDocument"]
        )
        assert set(record.get("curve", fields["Curve"])) == fields["Curve"]
    assert any("curve" in record for record in results["records"])


@pytest.mark.parametrize("options", [[], ["--protocol", "all"]])
def test_every_printed_field_is_described(posenc, trained_once, options):
    document = json.loads(posenc("compare", str(trained_once), "--format", "json", *options).out)
    for one in document["comparisons"] if options else [document]:
        assert set(one) == {"schema_version", "summary"} | described()["Comparison"]
        assert all(f"`{key}`" in PAGE.read_text(encoding="utf-8") for key in one["header"])
        for key, kind in LISTS.items():
            assert all(set(item) == described()[kind] for item in one[key])
        assert all(set(cell) == described()["Cell"] for row in one["rows"] for cell in row["cells"])

"""What README and docs say is so: commands, trees, schema, the site, tables and figures of the study."""

import importlib.util
import json
import re

import pytest
import tiny

from posenc.results import load_runs

TEXT = (tiny.ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.S)
DOCS = tiny.ROOT / "docs"
SCHEMA = (DOCS / "schema.md").read_text(encoding="utf-8")
LISTS = {"columns": "Column", "rows": "Row"}


def test_the_readme_opens_with_two_commands_and_its_python_example_runs():
    installs = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e {} && .venv/bin/{}\n"
    ends = ((".", "posenc train encoding=rope"), ("'.[dev]'", "python -m pytest"))
    assert BLOCKS[0] == ("sh", "".join(installs.format(*end) for end in ends))
    (code,) = [body for kind, body in BLOCKS if kind == "python"]
    exec(compile(code, "README.md", "exec"), {})


def test_the_tree_of_the_architecture_page_is_the_real_one():
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    block = next(body for body in re.findall(r"```text\n(.*?)```", page, re.S) if body.startswith("conf/"))
    named = set(re.findall(r"^(\S+/)", block, re.M))
    folders = {f"posenc/{p.name}/" for p in (tiny.ROOT / "posenc").iterdir() if (p / "__init__.py").is_file()}
    assert {n for n in named if n.startswith("posenc/")} == folders
    assert all((tiny.ROOT / name).is_dir() for name in named)


@pytest.mark.slow
def test_the_python_page_runs_from_top_to_bottom(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 8
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    env = {"POSENC_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(tiny.ROOT), "MPLBACKEND": "agg"}
    done = tiny.python("page.py", cwd=tmp_path, **env)
    assert done.code == 0, done.err[-3000:]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "rope finished" in done.out and "| alibi" in done.out
    shift = re.search(r"\['rotate'\] tensor\((\S+)\)", done.out)
    assert shift is not None and float(shift[1]) < 1e-4  # what the page says of RoPE


@pytest.mark.slow
def test_the_notebook_runs_cell_by_cell(tmp_path):
    cells = json.loads((DOCS / "notebooks" / "first.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(sources) >= 5 and not any(cell.get("outputs") for cell in cells)
    small = sources[0].replace("200_000", "8_192")
    script = tmp_path / "cells.py"  # the last line of a cell is shown by a notebook
    script.write_text("\n".join([small, *sources[1:], "print(runs.compare())"]), encoding="utf-8")
    env = {"POSENC_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(tiny.ROOT)}
    done = tiny.python(str(script), cwd=tmp_path, **env)
    assert done.code == 0, done.err[-3000:]
    assert "2 encodings" in done.out and "nats a byte with all of the text" in done.out


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs posenc[docs]")
def test_the_site_builds_strictly_and_needs_no_other_machine(tmp_path):
    site = tmp_path / "site"
    done = tiny.python("-m", "mkdocs", "build", "--strict", "-d", str(site))
    assert done.code == 0, done.err[-3000:]
    pages = sorted(path for path in site.glob("*.html") if path.stem != "404")
    assert {page.stem for page in pages} >= {path.stem for path in DOCS.glob("*.md")} | {"contributing"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=[\"']?([^\"' >]+)", text)
        loaded += re.findall(r"<link[^>]*stylesheet[^>]*href=[\"']?([^\"' >]+)", text)
        assert loaded and not [url for url in loaded if re.match(r"(https?:)?//", url)], page.name
        for target in re.findall(r"<a [^>]*href=[\"']?([\w./-]+\.html)", text):
            assert (site / target).is_file(), f"{page.name}: {target}"


def described():
    """The fields of each type on the page."""
    sections = re.split(r"^### ", SCHEMA, flags=re.M)[1:]
    return {one.splitlines()[0]: set(re.findall(r"^\| `(\w+)` \|", one, re.M)) for one in sections}


@pytest.mark.parametrize("name", ["schema", "encodings"])
def test_the_page_is_what_its_script_writes(name):
    code = f"import sys; sys.path[:0] = ['scripts/docs']; import {name}_page as s; print(s.page(), end='')"
    made, page = tiny.python("-c", code), (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert made.code == 0 and made.out == page, f"run python scripts/docs/{name}_page.py"


def test_every_field_on_disk_is_described(trained_once):
    (path,) = trained_once.rglob("results.json")
    results = json.loads(path.read_text())
    fields = described()
    assert set(results) == {"schema_version", "run", "records"}
    assert set(results["run"]) <= fields["RunFacts"]
    for record in results["records"]:
        assert set(record) <= fields["Record"]
        assert set(record["per_document"]) | {"group"} == fields["PerDocument"]
        assert set(record.get("curve", fields["Curve"])) == fields["Curve"]
    assert any("curve" in record for record in results["records"])


@pytest.mark.parametrize("options", [[], ["--protocol", "all"]])
def test_every_printed_field_is_described(posenc, trained_once, options):
    document = json.loads(posenc("compare", str(trained_once), "--format", "json", *options).out)
    for one in document["comparisons"] if options else [document]:
        assert set(one) == {"schema_version", "summary"} | described()["Comparison"]
        assert all(f"`{key}`" in SCHEMA for key in one["header"])
        for key, kind in LISTS.items():
            assert all(set(item) == described()[kind] for item in one[key])
        assert all(set(cell) == described()["Cell"] for row in one["rows"] for cell in row["cells"])


@pytest.mark.parametrize(("folder", "context_length"), [("study", 64), ("study-128", 128)])
def test_records_are_compact_and_of_finished_runs_of_one_recipe(folder, context_length):
    runs = load_runs([DOCS / "records" / folder])
    assert runs and sum(file.stat().st_size for file in (DOCS / "records" / folder).iterdir()) < 5e6
    assert len({run.facts["corpus"]["fingerprint"] for run in runs}) == 1
    protocols = {"fixed-target", "sliding", "nonoverlapping", "positions", "induction", "far-copy"}
    for run in runs:
        of = [run.facts[key] for key in ("tokens", "precision", "context_length")]
        assert of == [3999744, "fp32", context_length] and run.config["train"]["lr"] == 0.002
        assert run.state == "finished" and run.facts["model"]["name"] == "nano"
        assert protocols <= {record["protocol"] for record in run.records}, run.name


def test_every_table_and_figure_is_what_the_records_give():
    done = tiny.python("scripts/docs/pages.py", "--check")
    assert done.code == 0, done.out + done.err

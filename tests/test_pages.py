"""What README and docs say is true: commands, trees, schema, the site, tables and figures of the study."""

import importlib.util
import json
import re

import pytest
import tiny
from in_process import exit_code_of

from posenc.results import load_runs

README = (tiny.ROOT / "README.md").read_text(encoding="utf-8")
DOCS = tiny.ROOT / "docs"
SCRIPTS = tiny.ROOT / "scripts" / "docs"
SCHEMA = (DOCS / "schema.md").read_text(encoding="utf-8")
ON_OTHER_MACHINE = re.compile(r"(https?:)?//")


def code_blocks(text, kind):
    """Return the blocks of code of a kind, in order."""
    return [body for name, body in re.findall(r"```(\w*)\n(.*?)```", text, re.S) if name == kind]


def run_apart(code, folder):
    """Run Python code in a process of its own, in a folder of its own, with an empty cache."""
    script = folder / "code.py"
    script.write_text(code, encoding="utf-8")
    env = {"POSENC_CACHE": str(folder / "cache"), "PYTHONPATH": str(tiny.ROOT), "MPLBACKEND": "agg"}
    result = tiny.python(str(script), cwd=folder, **env)
    assert result.code == 0, result.err[-3000:]
    return result


def test_the_readme_opens_with_the_commands_of_the_main_job_and_the_tests():
    set_up = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e"
    assert code_blocks(README, "sh")[0].splitlines() == [
        f"{set_up} . && .venv/bin/posenc train encoding=rope",
        f"{set_up} '.[dev]' && .venv/bin/python -m pytest",
    ]


def test_the_encoding_of_the_readme_is_an_encoding(tmp_path):
    (code,) = code_blocks(README, "python")
    file = tmp_path / "mine.py"
    file.write_text(code, encoding="utf-8")
    assert exit_code_of("check", f"encoding={file}") == 0


def test_the_tree_of_the_architecture_page_names_every_package():
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    tree = next(block for block in code_blocks(page, "text") if block.startswith("conf/"))
    named = set(re.findall(r"^(posenc/\w+/)", tree, re.M))
    packages = {f"posenc/{file.parent.name}/" for file in (tiny.ROOT / "posenc").glob("*/__init__.py")}
    assert named == packages


def test_the_tree_of_the_architecture_page_names_only_folders_that_exist():
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    tree = next(block for block in code_blocks(page, "text") if block.startswith("conf/"))
    named = re.findall(r"^(\S+/)", tree, re.M)
    assert [name for name in named if not (tiny.ROOT / name).is_dir()] == []


@pytest.mark.slow
def test_the_python_page_runs_from_top_to_bottom(tmp_path):
    blocks = code_blocks((DOCS / "python.md").read_text(encoding="utf-8"), "python")
    result = run_apart("\n".join(blocks), tmp_path)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "rope finished" in result.out
    assert "| alibi" in result.out
    shift = re.search(r"\['rotate'\] tensor\((\S+)\)", result.out)
    assert shift is not None
    assert float(shift[1]) < 1e-4  # what the page says of RoPE


@pytest.fixture
def notebook_cells():
    """Return the code cells of the notebook."""
    notebook = json.loads((DOCS / "notebooks" / "first.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_stored_without_outputs(notebook_cells):
    assert [cell["outputs"] for cell in notebook_cells if cell["outputs"]] == []


@pytest.mark.slow
def test_the_notebook_runs_cell_by_cell(tmp_path, notebook_cells):
    first, *more = ["".join(cell["source"]) for cell in notebook_cells]
    small = first.replace("200_000", "8_192")
    last_line_of_a_cell = "print(runs.compare())"  # a notebook shows it, a script has to print it
    result = run_apart("\n".join([small, *more, last_line_of_a_cell]), tmp_path)
    assert "2 encodings" in result.out
    assert "nats a byte with all of the text" in result.out


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the built site. `.ci/run` runs the tests that need it."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("needs posenc[docs]")
    folder = tmp_path_factory.mktemp("site")
    result = tiny.python("-m", "mkdocs", "build", "--strict", "-d", str(folder))
    assert result.code == 0, result.err[-3000:]
    return folder


def pages_of(site):
    """Return (name, HTML) of each page."""
    files = [file for file in site.rglob("*.html") if file.stem != "404"]
    return [(file, file.read_text(encoding="utf-8")) for file in sorted(files)]


@pytest.mark.slow
def test_the_site_has_every_page_of_docs(site):
    in_docs = {str(file.relative_to(DOCS).with_suffix("")) for file in DOCS.rglob("*.md")}
    in_docs = {re.sub(r"README$", "index", name) for name in in_docs}
    on_site = {str(file.relative_to(site).with_suffix("")) for file, _ in pages_of(site)}
    assert in_docs | {"contributing", "changelog"} <= on_site


@pytest.mark.slow
def test_the_site_needs_no_other_machine(site):
    for file, html in pages_of(site):
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*src=[\"']?([^\"' >]+)", html)
        loaded += re.findall(r"<link[^>]*stylesheet[^>]*href=[\"']?([^\"' >]+)", html)
        assert loaded, file.name
        assert [url for url in loaded if ON_OTHER_MACHINE.match(url)] == [], file.name


@pytest.mark.slow
def test_links_of_the_site_lead_to_pages(site):
    for file, html in pages_of(site):
        for target in re.findall(r"<a [^>]*href=[\"']?([\w./-]+\.html)", html):
            assert (file.parent / target).is_file(), f"{file.name}: {target}"


def described_fields():
    """Return the fields of each type on the page of the schema."""
    sections = re.split(r"^### ", SCHEMA, flags=re.M)[1:]
    return {
        section.splitlines()[0]: set(re.findall(r"^\| `(\w+)` \|", section, re.M)) for section in sections
    }


@pytest.mark.parametrize("name", ["schema", pytest.param("encodings", marks=pytest.mark.slow)])
def test_the_page_is_what_its_script_writes(name):
    code = f"import sys; sys.path[:0] = ['scripts/docs']; import {name}_page as s; print(s.page(), end='')"
    result = tiny.python("-c", code)
    assert result.code == 0, result.err[-3000:]
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert result.out == page, f"run python scripts/docs/{name}_page.py"


def test_the_frozen_fields_of_results_json_stay():
    """What is new may be added to the list; what is in it changes only with the version of the schema."""
    code = "import json, sys; sys.path[:0] = ['scripts/docs']; import schema_page as s; "
    result = tiny.python("-c", code + "print(json.dumps(s.frozen_fields()))")
    assert result.code == 0, result.err[-3000:]
    fields = json.loads(result.out)
    frozen = json.loads((tiny.ROOT / "tests" / "results" / "frozen_schema.json").read_text(encoding="utf-8"))
    gone_or_changed = {
        f"{kind}.{field}"
        for kind, frozen_fields in frozen.items()
        for field, frozen_type in frozen_fields.items()
        if fields[kind].get(field) != frozen_type
    }
    assert gone_or_changed == set()


@pytest.fixture(scope="module")
def results_json(trained_once):
    """Return the results.json of a trained run."""
    (path,) = trained_once.rglob("results.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_fact_of_a_run_on_disk_is_described(results_json):
    assert set(results_json) == {"schema_version", "run", "records"}
    assert set(results_json["run"]) <= described_fields()["RunFacts"]


@pytest.mark.parametrize(
    ("fact", "kind"),
    [
        ("model", "ModelFacts"),
        ("parameters", "ParameterFacts"),
        ("corpus", "TrainingText"),
        ("tokenizer", "TokenizerFacts"),
    ],
)
def test_every_key_of_a_fact_on_disk_is_described(results_json, fact, kind):
    assert set(results_json["run"][fact]) <= described_fields()[kind]


def test_every_field_of_a_record_on_disk_is_described(results_json):
    fields = described_fields()
    for record in results_json["records"]:
        assert set(record) <= fields["Record"]
        assert set(record["per_document"]) | {"group"} == fields["PerDocument"]


def test_every_field_of_a_curve_on_disk_is_described(results_json):
    curves = [record["curve"] for record in results_json["records"] if "curve" in record]
    assert curves
    for curve in curves:
        assert set(curve) == described_fields()["Curve"]


@pytest.fixture(params=["one protocol", "all protocols"])
def printed_comparisons(request, posenc, trained_once):
    """Return the comparisons that `posenc compare --format json` prints."""
    command = ["compare", str(trained_once), "--format", "json"]
    if request.param == "one protocol":
        return [json.loads(posenc(*command).out)]
    return json.loads(posenc(*command, "--protocol", "all").out)["comparisons"]


def test_every_printed_field_of_a_comparison_is_described(printed_comparisons):
    for comparison in printed_comparisons:
        assert set(comparison) == {"schema_version", "summary"} | described_fields()["Comparison"]
        assert [key for key in comparison["header"] if f"`{key}`" not in SCHEMA] == []


@pytest.mark.parametrize(("key", "kind"), [("columns", "Column"), ("rows", "Row")])
def test_every_printed_field_of_rows_and_columns_is_described(printed_comparisons, key, kind):
    for comparison in printed_comparisons:
        for entry in comparison[key]:
            assert set(entry) == described_fields()[kind]


def test_every_printed_field_of_a_cell_is_described(printed_comparisons):
    cells = [
        cell for comparison in printed_comparisons for row in comparison["rows"] for cell in row["cells"]
    ]
    for cell in cells:
        assert set(cell) == described_fields()["Cell"]


STUDIES = pytest.mark.parametrize(("folder", "context_length"), [("study", 64), ("study-128", 128)])


@STUDIES
def test_records_of_the_study_are_compact(folder, context_length):
    files = (DOCS / "records" / folder).iterdir()
    assert sum(file.stat().st_size for file in files) < 5e6


@STUDIES
def test_records_of_the_study_are_finished_runs_of_one_recipe(folder, context_length):
    runs = load_runs([DOCS / "records" / folder])
    assert len({run.facts["corpus"]["fingerprint"] for run in runs}) == 1
    for run in runs:
        assert run.state == "finished"
        assert run.facts["tokens"] == 3999744
        assert run.facts["precision"] == "fp32"
        assert run.facts["context_length"] == context_length
        assert run.facts["model"]["name"] == "nano"
        assert run.config["train"]["lr"] == 0.002


@STUDIES
def test_records_of_the_study_are_measured_by_six_protocols(folder, context_length):
    protocols = {"fixed-target", "sliding", "nonoverlapping", "positions", "induction", "far-copy"}
    for run in load_runs([DOCS / "records" / folder]):
        measured = {record["protocol"] for record in run.records}
        assert protocols <= measured, run.name


def test_every_folder_of_records_is_described():
    page = (DOCS / "records" / "README.md").read_text(encoding="utf-8")
    folders = [path.name for path in (DOCS / "records").iterdir() if path.is_dir()]
    assert [name for name in folders if f"`{name}`" not in page] == []


def test_every_script_is_described():
    page = (tiny.ROOT / "scripts" / "README.md").read_text(encoding="utf-8")
    scripts = [*(tiny.ROOT / "scripts").rglob("*.py"), *(tiny.ROOT / "scripts").rglob("*.sh")]
    names = [str(script.relative_to(tiny.ROOT / "scripts")) for script in scripts]
    as_folders = ("checks/gate/", "checks/mutations/", "checks/simulations/", "gpu/")  # described as a whole
    listed_here = [name for name in names if not name.startswith(as_folders)]
    assert [name for name in listed_here if f"({name})" not in page] == []


@pytest.mark.slow  # .ci/run calls the script by itself
def test_every_table_and_figure_is_what_the_records_give():
    result = tiny.python("scripts/docs/pages.py", "--check")
    assert result.code == 0, result.out + result.err


@pytest.fixture
def pages(monkeypatch):
    """Return the module that remakes pages."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import pages

    return pages


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("<!-- printed with: posenc encodings -->\n<!-- end -->\n", "not one of"),
        ("<!-- printed by: posenc encodings -->\nold\n", "has no <!-- end -->"),
        (
            '<!-- made by: costs(["a"]) -->\n<!-- made by: costs(["b"]) -->\n<!-- end -->\n',
            "has no <!-- end -->",
        ),
        ('<!-- made by: cost(["study"]) -->\n<!-- end -->\n', "no such function"),
        ("<!-- made by: costs -->\n<!-- end -->\n", "not a call"),
    ],
    ids=["unknown kind", "no end", "end of the next one", "unknown function", "no call"],
)
def test_a_mark_that_cannot_be_read_is_refused(pages, page, complaint):
    with pytest.raises(ValueError, match=complaint):
        pages.remade(page)


def test_a_mark_keeps_the_text_around_it(pages):
    page = 'before\n<!-- made by: altered_models("study/causes.json") -->\nold\n<!-- end -->\nafter\n'
    remade = pages.remade(page)
    assert remade.startswith('before\n<!-- made by: altered_models("study/causes.json") -->\n| encoding |')
    assert remade.endswith("|\n<!-- end -->\nafter\n")
    assert "old" not in remade


def test_a_mark_runs_no_code(pages):
    with pytest.raises(ValueError):
        pages.remade("<!-- made by: costs([print('run')]) -->\n<!-- end -->\n")

"""Charts of comparisons: what is drawn is what was measured; files are whole and the same every time."""

import math
import re
from xml.etree import ElementTree

import pytest
from fake_runs import MULTIPLES, T, positions, recall_records, record, write_run

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir
from posenc.report import series
from posenc.report.charts import FORMATS, PLOTS, chart, check_plot, plot_bytes, save_plot
from posenc.report.series import DASHES, MARKERS, VARIANT_DASHES, Names, style_of, styles_of
from posenc.results import load_runs
from posenc.results.comparison import CompareRequest, compare_runs

FOUND = {8: 100, 32: 100, 56: 91, 112: 62, 224: 14, 448: 5}  # of 100 values by distance
CATALOGUE = sorted(path.stem for path in (conf_dir() / "encoding").glob("*.yaml"))
EXTENSIONS = sorted(path.stem for path in (conf_dir() / "extend").glob("*.yaml"))


def given(root, **request):
    return compare_runs(load_runs([root]), CompareRequest(**request))


def chart_of(kind, found):
    made = chart(kind, found, Names(found))
    assert made is not None
    return made


def points(made, row, panel=""):
    values = made.spec["data"]["values"]
    return {p["x"]: p["y"] for p in values if (p.get("row"), p["panel"]) == (row, panel)}


def svg_texts(kind, found):
    root = ElementTree.fromstring(plot_bytes("svg", kind, found))
    return ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")], root


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """One that keeps its loss and one that collapses, three seeds each, with every kind of record."""
    root = tmp_path_factory.mktemp("sweep")
    for name, slope in (("alibi", 0.002), ("rope", 0.4)):
        for seed in (0, 1, 2):
            losses = {m: 1.2 + 0.01 * seed * m + max(0, m - 1) * slope for m in MULTIPLES}
            records = [record(int(m * T), loss) for m, loss in losses.items()]
            for probe in ("induction", "far-copy"):
                records += [record(m * T, 2 + m * slope, protocol=probe) for m in (1, 2, 8)]
            records += [positions(shift=0.1 * seed), record(T, 1.9, protocol="trigram")]
            records += recall_records(FOUND | ({448: 10} if name == "rope" else {8: 20 + seed}))
            write_run(root, name, seed=seed, records=records)
    return root


@pytest.mark.parametrize("kind", PLOTS)
def test_every_kind_is_as_wide_as_a_page(swept, kind):
    texts, root = svg_texts(kind, given(swept))
    assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(5.5 * 72, abs=2)
    assert {"alibi", "rope"} <= set(texts) and "T = 64" in " ".join(texts)


@pytest.mark.parametrize(("metric", "unit"), [("nats", math.log(2)), ("bpb", 1.0), ("ppl", None)])
def test_the_charts_have_the_comparisons_numbers_and_margins(swept, metric, unit):
    found = given(swept, metric=metric)
    context, change = chart_of("context", found), chart_of("change", found)
    for row in found[0].rows:
        assert points(context, row.label) == pytest.approx({c.multiple: c.mean for c in row.cells}, rel=1e-5)
        moved = {c.multiple: c.change for c in row.cells}
        assert points(change, row.label) == pytest.approx(moved, rel=1e-5, abs=1e-9)
    cell = found[0].rows[0].cells[-1]
    band = next(p for p in context.spec["data"]["values"] if p.get("row") == "alibi" and p["x"] == 8)
    ends = (cell.mean - cell.spread, cell.mean + cell.spread)
    assert (band["low"], band["high"]) == pytest.approx(ends, rel=1e-5)
    margins = [(p["bottom"], p["top"]) for p in change.spec["data"]["values"] if "top" in p]
    assert margins == ([] if unit is None else [pytest.approx((-0.02 * unit, 0.02 * unit))])
    assert context.spec["encoding"]["y"]["scale"]["type"] == ("log" if metric == "ppl" else "linear")
    assert change.spec["encoding"]["y"]["scale"]["type"] == "symlog"
    assert context.rows == ["rope", "alibi"] and "standard deviation over 3 seeds" in context.note
    assert any(p.get("name") == "trigram" for p in context.spec["data"]["values"])
    assert style_of("rope", "rope").color in plot_bytes("svg", "context", found).decode()


def test_other_protocols_are_drawn_alike(swept):
    curve = points(chart_of("context", given(swept, protocol="positions")), "rope")
    assert [x * T for x in curve] == pytest.approx([8, 16, 32, 48, 64, 96, 128, 256, 512], abs=1e-3)
    assert list(curve.values()) == pytest.approx([1.1 + i / 10 for i in range(9)])
    probes = chart_of("context", given(swept, protocol="far-copy"))
    assert list(points(probes, "rope").values()) == pytest.approx([2.4, 2.8, 5.2])


def test_the_heat_map_prints_its_numbers_and_reasons(tmp_path):
    write_run(tmp_path, "rope", losses={0.5: 1.25, 1: 1.2, 8: 3.0})
    write_run(tmp_path, "alibi", records=[record(T, 1.3), record(8 * T, 0, note="oom at 512 tokens")])
    write_run(tmp_path, "t5", status="failed", reason="boom", results=False)
    found = given(tmp_path)
    texts, _ = svg_texts("heatmap", found)
    assert {"+0.050", "1.200", "+1.800", "1.300", "oom"} <= set(texts) and texts.count("failed") == 3
    assert points(chart_of("context", found), "alibi")[8] is None  # a gap, no line across it
    shades = {(p["row"], p["column"]): p["shade"] for p in chart_of("heatmap", found).spec["data"]["values"]}
    assert 0 < shades["rope", "0.5"] < shades["rope", "8"] < 1 and shades["rope", "1"] is None


def test_recall_is_a_grid_and_a_point_for_each_row(swept):
    grid = chart_of("recall", given(swept))
    shares = {(p["panel"], p["row"], p["column"]): p["text"] for p in grid.spec["data"]["values"]}
    assert grid.panels == ["alibi", "rope"] and len(shares) == 2 * (1 + 3 + 4 + 5 + 6)  # of four pairs
    assert (shares["rope", "512", "448"], shares["alibi", "512", "448"]) == ("10", "5")
    assert (shares["rope", "32", "8"], shares["alibi", "32", "8"]) == ("100", "21")  # the mean of three seeds
    texts, _ = svg_texts("recall", given(swept))
    assert texts.count("distance (tokens)") == 2 and texts.count("62") == 2 * 3
    use = chart_of("use", given(swept))
    at = {p["row"]: p for p in use.spec["data"]["values"]}
    assert [at["rope"]["y"], at["rope"]["x"]] == pytest.approx([10, 2.8 + 0.07], rel=1e-5)
    assert [at["alibi"]["y"], at["alibi"]["x"]] == pytest.approx([5, 0.014 + 0.07], rel=1e-5)
    assert at["rope"]["low"] < 10 < at["rope"]["high"] and at["rope"]["left"] < 2.87 < at["rope"]["right"]
    assert "at 8x" in use.spec["encoding"]["x"]["axis"]["title"]
    assert use.note.endswith("Did not learn to recall: alibi.")


def test_the_same_runs_give_the_same_bytes(swept):
    for format, start in zip(FORMATS, (b"\x89PNG\r\n\x1a\n", b"<svg", b"%PDF-"), strict=True):
        content = plot_bytes(format, "context", given(swept))
        assert content == plot_bytes(format, "context", given(swept)) and content.startswith(start)
        assert b"CreationDate" not in content
    assert re.search(rb"/FontFile2? \d+ 0 R|/FontFile3", content) or b"FlateDecode" in content


def test_wrong_input_is_named(tmp_path):
    write_run(tmp_path / "runs", "n" * 44)
    for path, kind, words in (
        ("x.gif", "context", "--plot=.*x.gif: its ending names the format\n  allowed: .png, .svg, .pdf"),
        ("x.png", "heat", "--plot-kind=heat: no such plot\n(.*\n)*  did you mean: heatmap"),
        ("x.png", "recall", "no run was asked to recall: posenc train experiment=recall"),
    ):
        with pytest.raises(UserError, match=words):
            save_plot(tmp_path / path, kind, given(tmp_path / "runs"))
        if kind != "recall":  # asked before the work, too
            with pytest.raises(UserError, match=words):
                check_plot(tmp_path / path, kind)
    assert [one.name for one in tmp_path.iterdir()] == ["runs"]


def test_styles_are_distinct_and_those_of_earlier_figures():
    assert len(set(styles_of({name: name for name in CATALOGUE}).values())) == len(CATALOGUE) > 25
    extended = dict.fromkeys(["rope", *(f"rope+{name}" for name in EXTENSIONS)], "rope")
    assert len(set(styles_of(extended).values())) == len(extended)
    assert style_of("rope", "rope") == series.Style("#2B9DF4", "#7C9AD3", (), "P")
    assert style_of("rope base=500000", "rope") == series.Style("#2B9DF4", "#7C9AD3", (4, 1.5), "X")
    # a variant keeps the family and an extension its mark
    base, yarn = style_of("rope", "rope"), style_of("rope+yarn", "rope")
    other = style_of("alibi+yarn", "alibi")
    assert (yarn.dash, yarn.marker) == (other.dash, other.marker)
    assert base.color == yarn.color != other.color
    # a sum is an encoding, of a family of its own; what is behind it a variant
    assert style_of("alibi+rope", "alibi+rope").dash in DASHES
    assert style_of("alibi+rope+yarn", "alibi+rope").dash in VARIANT_DASHES


def test_rows_that_stand_together_are_told_apart_in_any_order():
    labels = {name: name for name in CATALOGUE} | {f"rope base={n}": "rope" for n in range(20)}
    labels |= {f"zz{n}": f"zz{n}" for n in range(60)}
    found = styles_of(labels)
    assert len(set(found.values())) == len(labels)
    assert found == styles_of(dict(reversed(labels.items())))
    alone = styles_of({name: name for name in CATALOGUE})
    own = {name for name in CATALOGUE if alone[name] == style_of(name, name)}  # one of those that are alike
    assert len(own) == len({style_of(name, name) for name in CATALOGUE})
    assert {"nope", "learned", "sinusoidal", "rope", "alibi", "t5"} <= own
    for name in ("", "+", "a+", "+a", "\ud800", "x" * 10_000):
        assert style_of(name, name[:1]).marker in MARKERS

"""Charts of comparisons: what is drawn is what was measured; files are whole and the same every time."""

import math
from xml.etree import ElementTree

import pytest
from fake_runs import (
    MULTIPLES,
    T,
    dispersion_record,
    exact_records,
    memory_record,
    needle_records,
    positions,
    recall_records,
    record,
    write_run,
)

from posenc.core.errors import UserError
from posenc.report.charts.base import RowNames, panels_of
from posenc.report.charts.looks import PAPER, specification
from posenc.report.charts.names import plots
from posenc.report.charts.styles import style_of
from posenc.report.drawing import draw_figure, make_chart
from posenc.report.figure import (
    Figure,
    check_font,
    check_kind,
    check_picture,
    renamed,
    size_in_points,
    split_labels,
)
from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest

FOUND = {8: 100, 32: 100, 56: 91, 112: 62, 224: 14, 448: 5}  # of 100 values by distance
SLOPES = {"alibi": 0.002, "rope": 0.4}  # of the loss past T
PAGE_WIDTH = 5.5 * 72  # points


def comparisons_of(root, **request):
    return compare_runs(load_runs([root]), CompareRequest(**request))


def comparisons_for(kind, root):
    """The tables that a kind of chart is of."""
    protocols = {"exact": "exact", "tasks": "exact", "needle": "needle"}
    return comparisons_of(root, protocol=protocols.get(kind, "fixed-target"))


def chart_of(kind, comparisons):
    made = make_chart(kind, comparisons, RowNames(comparisons), PAPER)
    assert made is not None
    return made


def plot_bytes(format, kind, comparisons, **figure):
    return draw_figure(kind, comparisons, Figure(**figure)).data(format)


def points_of(made):
    return specification(made.layers)["data"]["values"]


def channel_of(made, channel):
    """The channel of the first layer that has it."""
    layers = specification(made.layers)["layer"]
    return next(layer["encoding"][channel] for layer in layers if channel in layer["encoding"])


def sides_of(root):
    """The width and the height of a drawn chart in points."""
    return [float(root.attrib[side].removesuffix("pt")) for side in ("width", "height")]


def values_by_x(made, row, panel=""):
    """What a line is drawn through."""
    points = [point for point in points_of(made) if point.get("row") == row and point["panel"] == panel]
    return {point["x"]: point["y"] for point in points}


def svg_of(kind, comparisons, **figure):
    """The root of a drawn chart, and all its texts."""
    root = ElementTree.fromstring(plot_bytes("svg", kind, comparisons, **figure))
    return root, ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """One that keeps its loss and one that collapses, three seeds each, with every kind of record."""
    root = tmp_path_factory.mktemp("sweep")
    for name, slope in SLOPES.items():
        for seed in (0, 1, 2):
            losses = {m: 1.2 + 0.01 * seed * m + max(0, m - 1) * slope for m in MULTIPLES}
            records = [record(int(m * T), loss) for m, loss in losses.items()]
            for probe in ("induction", "far-copy"):
                records += [record(m * T, 2 + m * slope, protocol=probe) for m in (1, 2, 8)]
            records += [positions(shift=0.1 * seed), record(T, 1.9, protocol="trigram")]
            special = {448: 10} if name == "rope" else {8: 20 + seed}
            records += recall_records(FOUND | special)
            records += needle_records({1: (16, 15, 14), 8: (seed, 4, 8)})
            records += exact_records({1: 95 + seed, 2: 80, 8: 10 * seed})
            records += [dispersion_record(int(m * T), loss, far_nats=loss) for m, loss in losses.items()]
            records += [memory_record(int(m * T), loss) for m, loss in losses.items()]
            write_run(root, name, seed=seed, records=records)
    return root


# --- what is drawn


@pytest.mark.parametrize("kind", plots())
def test_every_kind_is_as_wide_as_a_page_and_names_its_rows(swept, kind):
    root, texts = svg_of(kind, comparisons_for(kind, swept), caption="auto")
    assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(PAGE_WIDTH, abs=2)
    assert {"alibi", "rope"} <= set(texts)
    assert "T = 64" in " ".join(texts)


@pytest.mark.parametrize("metric", ["nats", "bpb", "ppl"])
def test_the_lines_are_the_losses_of_the_comparison(swept, metric):
    comparisons = comparisons_of(swept, metric=metric)
    made = chart_of("context", comparisons)
    for row in comparisons[0].rows:
        losses = {cell.multiple: cell.mean for cell in row.cells}
        assert values_by_x(made, row.label) == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("metric", ["nats", "bpb", "ppl"])
def test_the_lines_of_changes_are_the_changes_of_the_comparison(swept, metric):
    comparisons = comparisons_of(swept, metric=metric)
    made = chart_of("change", comparisons)
    for row in comparisons[0].rows:
        changes = {cell.multiple: cell.change for cell in row.cells}
        assert values_by_x(made, row.label) == pytest.approx(changes, rel=1e-5, abs=1e-9)


def test_the_band_is_the_standard_deviation_over_seeds(swept):
    comparisons = comparisons_of(swept)
    made = chart_of("context", comparisons)
    cell = comparisons[0].rows[0].cells[-1]
    point = next(point for point in points_of(made) if point.get("row") == "alibi" and point["x"] == 8)
    assert point["low"] == pytest.approx(cell.mean - cell.spread, rel=1e-5)
    assert point["high"] == pytest.approx(cell.mean + cell.spread, rel=1e-5)
    assert "standard deviation over 3 seeds" in made.caption


def test_the_caption_says_that_the_band_of_one_seed_is_another(tmp_path):
    for seed in range(3):
        write_run(tmp_path, "alibi", seed=seed, losses={1: 1.2 + 0.01 * seed, 8: 1.3})
    write_run(tmp_path, "rope", losses={1: 1.2, 8: 1.4})
    caption = chart_of("context", comparisons_of(tmp_path)).caption
    assert "standard deviation over 3 seeds; of 1 seed 95% CI over documents." in caption


def test_the_band_of_one_seed_is_the_interval_of_its_change_around_the_loss(recalling):
    comparisons = comparisons_of(recalling)
    row = comparisons[0].rows[0]
    cell = row.cells[-1]
    points = points_of(chart_of("context", comparisons))
    point = next(point for point in points if point.get("row") == row.label and point["x"] == cell.multiple)
    low, high = cell.change_ci95
    assert point["low"] == pytest.approx(cell.mean + low - cell.change, rel=1e-5)
    assert point["high"] == pytest.approx(cell.mean + high - cell.change, rel=1e-5)


def test_a_band_of_perplexities_stays_above_zero(tmp_path):
    """They are drawn on a logarithmic axis, and seeds that collapse differ by more than their mean."""
    for seed, loss in enumerate((0.5, 0.6, 5.0)):
        write_run(tmp_path, "rope", seed=seed, losses={1: 0.5, 8: loss})
    comparisons = comparisons_of(tmp_path, metric="ppl")
    cell = comparisons[0].rows[0].cells[-1]
    assert cell.spread > cell.mean
    points = points_of(chart_of("context", comparisons))
    point = next(point for point in points if point.get("row") == "rope" and point["x"] == 8)
    assert point["low"] == pytest.approx(cell.mean**2 / (cell.mean + cell.spread), rel=1e-4)


@pytest.mark.parametrize(("metric", "unit"), [("nats", math.log(2)), ("bpb", 1.0)])
def test_the_margin_of_same_is_marked_in_the_charts_unit(swept, metric, unit):
    made = chart_of("change", comparisons_of(swept, metric=metric))
    (margin,) = [point for point in points_of(made) if "top" in point]
    assert margin["bottom"] == pytest.approx(-0.02 * unit)
    assert margin["top"] == pytest.approx(0.02 * unit)


def test_perplexities_have_no_margins(swept):
    made = chart_of("change", comparisons_of(swept, metric="ppl"))
    assert not [point for point in points_of(made) if "top" in point]


@pytest.mark.parametrize(
    ("kind", "metric", "scale"),
    [("context", "nats", "linear"), ("context", "ppl", "log"), ("change", "nats", "symlog")],
)
def test_changes_and_perplexities_are_logarithmic(swept, kind, metric, scale):
    made = chart_of(kind, comparisons_of(swept, metric=metric))
    assert channel_of(made, "y")["scale"]["type"] == scale


def test_the_legend_is_in_the_order_in_which_the_lines_end(swept):
    assert chart_of("context", comparisons_of(swept)).rows == ["rope", "alibi"]


def test_the_trigram_is_a_level(swept):
    made = chart_of("context", comparisons_of(swept))
    (level,) = [point for point in points_of(made) if point.get("name") == "trigram"]
    assert level["level"] == pytest.approx(1.9)


def test_a_row_has_the_colour_of_its_encoding(swept):
    svg = plot_bytes("svg", "context", comparisons_of(swept)).decode()
    assert style_of("rope", "rope").on_white in svg


def test_a_curve_over_positions_has_a_point_for_each_bin(swept):
    curve = values_by_x(chart_of("context", comparisons_of(swept, protocol="positions")), "rope")
    assert [x * T for x in curve] == pytest.approx([8, 16, 32, 48, 64, 96, 128, 256, 512], abs=1e-3)
    assert list(curve.values()) == pytest.approx([1.1 + i / 10 for i in range(9)])


def test_a_probe_is_drawn_like_a_loss(swept):
    line = values_by_x(chart_of("context", comparisons_of(swept, protocol="far-copy")), "rope")
    assert list(line.values()) == pytest.approx([2.4, 2.8, 5.2])


# --- grids


@pytest.fixture
def incomplete(tmp_path):
    """A row that lacks memory at the longest window, and one that failed."""
    write_run(tmp_path, "rope", losses={0.5: 1.25, 1: 1.2, 8: 3.0})
    write_run(tmp_path, "alibi", records=[record(T, 1.3), record(8 * T, 0, note="oom at 512 tokens")])
    write_run(tmp_path, "t5", status="failed", reason="boom", results=False)
    return comparisons_of(tmp_path)


def test_the_heat_map_prints_its_numbers_and_reasons(incomplete):
    _, texts = svg_of("heatmap", incomplete)
    assert {"+0.050", "1.200", "+1.800", "1.300", "oom"} <= set(texts)
    assert texts.count("failed") == 3


def test_a_larger_change_is_darker_and_the_loss_itself_white(incomplete):
    points = points_of(chart_of("heatmap", incomplete))
    shades = {(point["row"], point["column"]): point["shade"] for point in points}
    assert 0 < shades["rope", "0.5"] < shades["rope", "8"] < 1
    assert shades["rope", "1"] is None


def test_a_missing_value_is_a_gap_in_its_line(incomplete):
    assert values_by_x(chart_of("context", incomplete), "alibi")[8] is None


def shares_of(made):
    return {(point["panel"], point["row"], point["column"]): point["text"] for point in points_of(made)}


def test_recall_is_a_grid_of_windows_and_distances_for_each_row(swept):
    made = chart_of("recall", comparisons_of(swept))
    shares = shares_of(made)
    assert made.panels == ["alibi", "rope"]
    assert shares["rope", "512", "448"] == "10"
    assert shares["alibi", "512", "448"] == "5"
    assert shares["alibi", "32", "8"] == "21"  # the mean of three seeds


def test_the_grid_of_recall_has_only_as_many_pairs_as_the_training(swept):
    assert len(shares_of(chart_of("recall", comparisons_of(swept)))) == 2 * (1 + 3 + 4 + 5 + 6)


def test_facts_are_a_grid_of_depths_and_windows_for_each_row(swept):
    made = chart_of("needle", comparisons_for("needle", swept))
    shares = {(point["panel"], point["row"], point["column"]): point["text"] for point in points_of(made)}
    assert set(made.panels) == {"alibi", "rope"}
    assert shares["rope", "0.5", "64"] == "94"  # 45 of 48, three seeds together
    assert shares["rope", "0", "512"] == "6"  # 0, 1 and 2 of 16


def test_every_panel_of_recall_has_its_axes(swept):
    _, texts = svg_of("recall", comparisons_of(swept))
    assert texts.count("distance (tokens)") == 2


# --- harm and use


@pytest.mark.parametrize(("row", "recall", "change"), [("rope", 10, 2.8 + 0.07), ("alibi", 5, 0.014 + 0.07)])
def test_a_row_is_a_point_of_its_change_and_its_recall(swept, row, recall, change):
    points = points_of(chart_of("use", comparisons_of(swept)))
    point = next(point for point in points if point["row"] == row)
    assert point["y"] == pytest.approx(recall, rel=1e-5)
    assert point["x"] == pytest.approx(change, rel=1e-5)
    assert point["low"] < recall < point["high"]
    assert point["left"] < change < point["right"]


def test_harm_has_the_interval_of_its_verdict(swept):
    comparisons = comparisons_of(swept)
    row = next(row for row in comparisons[0].rows if row.label == "alibi")
    point = next(point for point in points_of(chart_of("use", comparisons)) if point["row"] == "alibi")
    interval = [math.log(2) * bits for bits in row.cells[-1].verdict_ci95]  # tokens are bytes
    assert [point["left"], point["right"]] == pytest.approx(interval, rel=1e-5)


def test_harm_and_use_say_what_is_the_same(swept):
    caption = chart_of("use", comparisons_of(swept)).caption
    assert "Grey: the loss stays the same, within 0.02 bits per byte." in caption


def test_harm_and_use_say_their_window_and_who_did_not_learn(swept):
    made = chart_of("use", comparisons_of(swept))
    assert "at 8x" in channel_of(made, "x")["axis"]["title"]
    assert made.caption.endswith("Did not learn to recall: alibi.")


# --- files


@pytest.mark.parametrize(
    ("format", "start"), [("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<svg"), ("pdf", b"%PDF-")]
)
def test_the_same_runs_give_the_same_bytes(swept, format, start):
    content = plot_bytes(format, "context", comparisons_of(swept))
    assert content.startswith(start)
    assert content == plot_bytes(format, "context", comparisons_of(swept))
    assert b"CreationDate" not in content


def test_a_wrong_kind_is_named():
    with pytest.raises(UserError, match=r"--plot-kind=heat: no such plot\n(.*\n)*  did you mean: heatmap"):
        check_kind("heat")


def test_a_wrong_ending_is_named(tmp_path):
    message = "--plot=.*x.gif: its ending names the format\n  allowed: .png, .svg, .pdf"
    with pytest.raises(UserError, match=message):
        check_picture("--plot", tmp_path / "x.gif")


def test_a_chart_without_a_number_says_how_to_get_one(tmp_path):
    write_run(tmp_path / "runs", "n" * 44)
    with pytest.raises(UserError, match="no recall beside these losses: posenc train experiment=recall"):
        draw_figure("recall", comparisons_of(tmp_path / "runs"))


# --- what a paper needs


@pytest.mark.parametrize("kind", plots())
def test_a_chart_is_valid(swept, kind):
    """Against the schema of Vega-Lite, which posenc itself does not check."""
    assert chart_of(kind, comparisons_for(kind, swept)).layers.to_dict(validate=True)


@pytest.mark.parametrize("kind", ["change", "heatmap", "use"])
def test_a_figure_has_the_size_that_is_asked_for(swept, kind):
    root, _ = svg_of(kind, comparisons_of(swept), width=234.0, height=172.8)  # a column
    assert sides_of(root) == pytest.approx([234, 172.8], abs=2)


def test_a_size_that_is_too_small_is_refused_with_one_that_is_not(swept):
    with pytest.raises(UserError, match=r"--size=1x1: is too small for this figure\n  --size [\d.]+x"):
        draw_figure("change", comparisons_of(swept), Figure(width=72.0, height=72.0))


def test_the_caption_is_not_in_the_file(swept):
    _, texts = svg_of("change", comparisons_of(swept))
    assert "T = 64" not in " ".join(texts)


def test_the_caption_is_beside_the_picture(swept):
    assert "T = 64" in draw_figure("change", comparisons_of(swept)).caption


def test_a_caption_of_ones_own_is_below_the_chart(swept):
    _, texts = svg_of("change", comparisons_of(swept), caption="Ours is best.")
    assert "Ours is best." in texts


def test_a_figure_without_a_legend_has_no_names(swept):
    _, texts = svg_of("change", comparisons_of(swept), has_legend=False)
    assert not {"rope", "alibi"} & set(texts)


def test_a_font_is_that_of_all_texts(swept):
    root, _ = svg_of("change", comparisons_of(swept), font="serif")
    fonts = {text.attrib["font-family"] for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert all(font.startswith("serif,") for font in fonts)


def test_a_font_that_is_not_installed_is_refused():
    with pytest.raises(UserError, match="--font=No Such Font: there is no such font"):
        check_font("No Such Font")


@pytest.mark.parametrize("text", ["", "x", "3.25x", "3x2x1", "0.1x2", "3x400", "-3x2"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UserError, match=r"allowed: 1 to 40 inches: 3\.25x2\.4"):
        size_in_points(text)


def test_a_renamed_row_keeps_its_style(swept):
    names = RowNames(renamed(comparisons_of(swept), ["rope=Ours"]))
    assert names.styles["Ours"] == style_of("rope", "rope")


@pytest.mark.parametrize("kind", plots())
def test_a_renamed_row_has_its_new_name_in_every_chart(swept, kind):
    made = chart_of(kind, renamed(comparisons_for(kind, swept), ["rope=Ours"]))
    names = {point[key] for point in points_of(made) for key in ("panel", "row") if key in point}
    assert "Ours" in names
    assert "rope" not in names


def test_a_row_whose_name_has_an_equals_sign_is_renamed(tmp_path):
    for base in (100.0, 500.0):
        write_run(tmp_path, "rope", params={"base": base})
    (comparison,) = renamed(
        comparisons_of(tmp_path), split_labels(["rope base=500=RoPE, slow,rope base=100=b=1"])
    )
    assert {row.name for row in comparison.rows} == {"RoPE, slow", "b=1"}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("rop=Ours", "--labels=rop: there is no such row\n(.*\n)*  did you mean: rope"),
        ("rope=", "--labels=rope: needs a text"),
        ("rope=alibi", "two rows would be called alibi"),
    ],
)
def test_a_label_that_cannot_be_is_refused(swept, label, message):
    with pytest.raises(UserError, match=message):
        renamed(comparisons_of(swept), [label])


@pytest.mark.parametrize("kind", ["context", "change"])
def test_the_band_of_one_seed_has_no_width_at_t(incomplete, kind):
    """Without it, the band went straight from T/2 to 2T, past the line."""
    points = points_of(chart_of(kind, incomplete))
    at_t = next(point for point in points if point.get("row") == "rope" and point["x"] == 1)
    assert at_t["low"] == at_t["y"]
    assert at_t["high"] == at_t["y"]


def test_panels_that_no_fact_tells_apart_have_titles_of_their_own(tmp_path):
    """4,000,000 and 4,001,000 tokens are both printed as 4M."""
    for tokens in (4_000_000, 4_001_000):
        write_run(tmp_path, seed=tokens % 7, facts={"tokens": tokens}, losses={1: 1.0, 8: 2.0})
    panels = panels_of(compare_runs(load_runs([tmp_path])))
    assert len({panel.title for panel in panels}) == len(panels) == 2

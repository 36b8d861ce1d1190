"""The page: what is in it, that strangers' text stays text, that it loads nothing; and in a real browser."""

import base64
import hashlib
import html
import itertools
import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser

import pytest
import vl_convert
from fake_runs import T, dispersion_record, positions, recall_records, record, write_run

from posenc.report.explain import terms_of_tables
from posenc.report.page import page as make_page
from posenc.report.reports import full_report, rows_table, short_report
from posenc.report.sentences.notes import full_notes
from posenc.results.comparison import compare_runs
from posenc.results.discovery import load_runs
from posenc.results.drafts import CompareRequest

EVIL = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"
EXPRESSIONS = ("filter", "labelExpr", "expr", "test", "calculate")  # keys of Vega-Lite
LOSSES = {
    "rope": {0.5: 1.35, 1: 1.30, 2: 2.1, 4: 2.9, 8: 3.4},
    "alibi": {0.5: 1.37, 1: 1.33, 2: 1.331, 4: 1.332, 8: 1.333},
    "nope": {0.5: 1.41, 1: 1.45, 2: 1.9, 4: 2.4, 8: 2.8},
}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def page_of(root, path, *command):
    text = make_page(compare_runs(load_runs([root]), CompareRequest("all")), command)
    path.write_text(text)
    return text


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three encodings x two seeds with curves; one that failed at 8x, one without a number; hostile text."""
    root = tmp_path_factory.mktemp("runs")
    for name, losses in LOSSES.items():
        for seed in (0, 1):
            records = [record(int(multiple * T), loss + seed / 100) for multiple, loss in losses.items()]
            params = {"base": 10000.0} if name == "rope" else {}
            records.append(positions(shift=seed / 50))
            write_run(root, name, seed=seed, records=records, params=params)
    records = [record(T, 1.5), record(8 * T, 9.9, note=f"oom {EVIL}")]
    write_run(root, f"x{EVIL}", records=records, config={"train": {"tuned": EVIL}})
    write_run(root, "fire", results=False, status="failed", reason=EVIL, config={"plugins": [EVIL]})
    return root


@pytest.fixture(scope="module")
def page(root):
    return page_of(root, root.parent / f"{root.name}.html")


@pytest.mark.parametrize(
    ("word", "style"),
    [
        ("tied", "same"),
        pytest.param("unresolved", "unclear", marks=pytest.mark.slow),
        pytest.param("above", "worse", marks=pytest.mark.slow),
    ],
)
def test_the_words_of_ranks_have_styles_of_their_own(tmp_path, word, style):
    for seed, noise in enumerate((0.0, 0.0001)):
        for name, loss in {"alibi": 1.0, "fox": 1.0, "nope": 2.0}.items():
            write_run(tmp_path, name, seed=seed, losses={1: loss + noise, 8: loss + noise})
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.5 + seed, 8: 1.5 + seed})
    content = page_of(tmp_path, tmp_path / "page.html")
    assert f'<span class="word {style}">{word}</span>' in content


class Elements(HTMLParser):
    """Every element with its attributes, and all text outside of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.elements = []
        self.text = ""
        self._skip = 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._skip += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._skip -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._skip:
            self.text += data


@pytest.fixture(scope="module")
def elements(page):
    return Elements(page)


# --- What is in the page
@pytest.fixture(scope="module")
def comparison(root):
    return compare_runs(load_runs([root]))[0]


def test_every_number_of_the_tables_is_in_the_page(comparison, elements):
    tables = [rows_table(comparison), *full_report(comparison).tables]
    rows = itertools.chain.from_iterable(table.rows for table in tables)
    cells = list(itertools.chain.from_iterable(rows))
    assert len(cells) > 30
    for cell in cells:
        assert cell.text.partition(",")[0] in elements.text


def test_the_answer_and_the_notes_are_in_the_page(comparison, elements):
    assert short_report(comparison).answer in elements.text
    for note in full_notes(comparison):
        assert note in elements.text


def test_every_term_is_in_the_page_with_its_meaning(elements):
    for term, meaning in terms_of_tables():
        assert term in elements.text
        assert meaning in elements.text


def test_the_guide_comes_before_the_first_section(page):
    assert page.index("<h2>How to read</h2>") < page.index('<section id="c0">')


def test_a_section_is_headed_by_words(page):
    assert "<h2>Same targets, more text</h2>" in page
    assert "<h2>Each position of one long context</h2>" in page


def test_every_run_is_listed(root, elements):
    for run in load_runs([root]):
        assert run.path.name in elements.text


def test_the_reason_of_a_failed_run_is_in_the_page(elements):
    assert re.search(r"fire-nano-T64-s0-\w+: failed, " + re.escape(EVIL), elements.text)


# --- Recall
@pytest.fixture(scope="module")
def page_with_recall(tmp_path_factory):
    root = tmp_path_factory.mktemp("recall")
    recall = recall_records({8: 100, 32: 99, 56: 98, 112: 60})
    for name in ("rope", "alibi"):
        write_run(root / "runs", name, records=[record(T, 1.0), record(2 * T, 1.1), *recall])
    return page_of(root / "runs", root / "page.html", "posenc", "compare", "my runs")


def test_the_page_has_the_command_that_made_it(page_with_recall):
    assert "posenc compare 'my runs'" in html.unescape(page_with_recall)


def charts_in(page):
    text = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)[1]
    return json.loads(text)


def test_the_legend_of_every_chart_can_be_clicked(page, page_with_recall):
    for chart in [*charts_in(page), *charts_in(page_with_recall)]:
        legends = vl_convert.vegalite_to_vega(chart)["legends"]
        assert "row_legend_labels" in json.dumps(legends)


@pytest.mark.parametrize("heading", ["Harm and use", "Change against T"])
def test_recall_has_no_section_beside_that_of_the_losses(page_with_recall, heading):
    """Although `--protocol all` has two tables; the losses of recall's windows are no curve."""
    assert page_with_recall.count(f"<h3>{heading}</h3>") == 1


def test_recall_is_beside_the_losses_with_its_chart(page_with_recall):
    text = Elements(page_with_recall).text
    assert "recall@T" in text
    assert "recall, % with 95% CI" in text


# --- Why rows fail
@pytest.fixture(scope="module")
def page_with_dispersion(tmp_path_factory):
    root = tmp_path_factory.mktemp("dispersion")
    records = [record(T, 1.0), record(8 * T, 3.0), dispersion_record(T, 1.0)]
    records.append(dispersion_record(8 * T, 3.0, entropy=4.1, first=0.01, variance=0.2, far_nats=3.0))
    write_run(root / "runs", "rope", records=records)
    return page_of(root / "runs", root / "page.html")


@pytest.mark.parametrize(
    "quantity", ["entropy", "weight on the first token", "output variance", "far positions alone"]
)
def test_the_page_draws_why_rows_fail_a_chart_for_each_quantity(page_with_dispersion, quantity):
    assert f"<h3>Why rows fail: {quantity}" in page_with_dispersion


def test_a_chart_of_one_quantity_has_no_points_of_another(page_with_dispersion):
    filters = [
        chart["transform"][0]["filter"] for chart in charts_in(page_with_dispersion) if "transform" in chart
    ]
    assert len(filters) >= 4
    assert len(set(filters)) == 4


def test_the_page_says_why_a_row_fails(page_with_dispersion):
    assert "positions never seen" in Elements(page_with_dispersion).text


# --- Strangers' text
def test_strangers_text_stays_text(page, elements):
    assert EVIL not in page
    assert EVIL in elements.text  # and is no template, which would have become 49


def test_no_element_could_load_something(elements):
    tags = {tag for tag, _ in elements.elements}
    assert not tags & {"img", "link", "iframe", "object", "embed", "base", "form"}


def test_links_lead_to_places_in_the_page(elements):
    links = []
    for _, attributes in elements.elements:
        links += [attributes[name] or "" for name in ("src", "href", "action") if name in attributes]
    targets = {f"#{attributes['id']}" for _, attributes in elements.elements if attributes.get("id")}
    assert len(links) == 5
    assert set(links) <= targets


@pytest.fixture(scope="module")
def chart_data(page):
    """The text of the page's charts."""
    return re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)[1]


def test_the_data_of_charts_cannot_end_their_element(chart_data):
    assert not set("<>&") & set(chart_data)


def test_strangers_text_is_in_the_data_of_charts(chart_data):
    specs = json.loads(chart_data)
    points = itertools.chain.from_iterable(spec["data"]["values"] for spec in specs)
    labels = [point.get("row", "") for point in points]
    assert len(specs) == 4
    assert any(EVIL[:20] in label for label in labels)


def expressions_of(part):
    """Yield what Vega evaluates in a part of a chart."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key in EXPRESSIONS and isinstance(value, str):
                yield value
            else:
                yield from expressions_of(value)
    elif isinstance(part, list):
        for value in part:
            yield from expressions_of(value)


def test_strangers_text_is_in_no_expression_of_charts(chart_data):
    expressions = list(expressions_of(json.loads(chart_data)))
    assert len(expressions) > 10
    assert not any(EVIL[:20] in expression for expression in expressions)


@pytest.fixture(scope="module")
def policy(page):
    """The policy that tells the browser what may be loaded and run."""
    return re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]


def test_the_policy_allows_nothing_by_default(policy):
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_the_policy_names_the_digest_of_each_script_and_style(page, policy):
    texts = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.DOTALL)
    assert len(texts) == 3
    for text in texts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


# --- The file
def test_the_same_runs_give_the_same_bytes(root, page, tmp_path):
    assert page_of(root, tmp_path / f"{root.name}.html") == page


def test_the_page_has_less_than_two_megabytes(page):
    assert len(page.encode()) < 2_000_000


# --- In a browser
@pytest.fixture
def tab(root, page):
    """The page at the size of a desk; nothing may have been requested, asked or printed on the console."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH")
    url = (root.parent / f"{root.name}.html").as_uri()
    problems = []

    def note_request(request):
        if request.url != url:
            problems.append(request.url[:80])

    def dismiss(dialog):
        problems.append("dialog")
        dialog.dismiss()

    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", dismiss)
        tab.on("request", note_request)
        tab.goto(url)
        tab.wait_for_selector("html[data-ready=charts]")
        yield tab
        browser.close()
    # The request that a test makes itself is refused, which the browser says on the console.
    assert [text for text in problems if "data:,x" not in text and "Fetch API" not in text] == []


def labels_in(table):
    """Return the labels of the rows that are visible, in their order."""
    return [label.strip() for label in table.locator("tbody th:visible").all_inner_texts()]


def background_of(tab):
    return str(tab.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.slow
def test_every_chart_is_drawn(tab):
    titles = tab.locator(".chart h3").all_inner_texts()
    assert titles[:3] == ["Loss against context", "Change against T", "Loss by position"]
    assert len(titles) == 4
    assert tab.locator(".plot svg").count() == 4
    assert tab.locator("img").count() == 0


@pytest.mark.slow
def test_a_point_under_the_mouse_tells_its_numbers(tab):
    plot = tab.locator(".plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + box["width"] - 25, box["y"] + 25)  # the highest point at the right end
    assert tab.locator("#tip").inner_text().startswith("rope\n8x = 512 tokens\n3.405±0.007\n+2.100")


@pytest.mark.slow
def test_a_click_on_the_legend_dims_the_other_lines(tab):
    plot = tab.locator(".plot").first
    plot.locator(".role-legend-label text", has_text="rope").click()
    tab.wait_for_timeout(200)
    lines = plot.locator(".mark-line path").all()
    opacities = Counter(line.get_attribute("opacity") for line in lines)
    assert opacities == {"1": 1, "0.12": len(lines) - 1}


@pytest.mark.slow
def test_a_table_is_sorted_by_its_heads(tab):
    table = tab.locator("#c0 .table").first
    head = table.locator("thead th").nth(4)
    head.locator("button").click()
    assert labels_in(table)[:3] == ["alibi", "nope", "rope"]
    head.locator("button").press("Enter")
    assert labels_in(table)[:3] == ["rope", "nope", "alibi"]  # rows without a number stay last
    assert head.get_attribute("aria-sort") == "descending"


@pytest.mark.slow
def test_a_table_is_filtered(tab):
    table = tab.locator("#c0 .table").first
    table.locator(".filter").fill("COLLAPSED")
    assert sorted(labels_in(table)) == ["nope", "rope"]


@pytest.mark.slow
def test_the_theme_is_switched(tab):
    assert background_of(tab) == "rgb(255, 255, 255)"
    tab.locator("#theme").press("Enter")
    assert background_of(tab) != "rgb(255, 255, 255)"


@pytest.mark.slow
def test_the_browser_refuses_to_fetch(tab):
    assert tab.evaluate("fetch('data:,x').then(() => 'loaded', () => 'refused')") == "refused"


@pytest.fixture
def phone(tab):
    """The page on a phone, with every table unfolded."""
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    return tab


@pytest.mark.slow
def test_the_page_fits_a_phone(phone):
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_no_table_is_cut_on_a_phone(phone):
    for table in phone.locator(".scroll").all():
        assert table.evaluate("box => box.scrollWidth - box.clientWidth") <= 0


@pytest.mark.slow
def test_a_card_on_a_phone_names_its_numbers(phone):
    cell = phone.locator("#c0 .table tbody td").first
    assert cell.get_attribute("data-head") == "1x (T)"


@pytest.mark.slow
def test_a_chart_is_drawn_anew_for_paper(tab):
    plot = tab.locator(".plot svg").first
    width = int(plot.get_attribute("width"))
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.wait_for_timeout(200)
    assert int(plot.get_attribute("width")) == 330
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.wait_for_timeout(200)
    assert int(plot.get_attribute("width")) == width

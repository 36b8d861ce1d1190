"""The page: what is in it, that strangers' text stays text, that it loads nothing; and in a real browser."""

import base64
import hashlib
import html
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from fake_runs import T, positions, recall_records, record, write_run

from posenc.core.errors import RunError
from posenc.report.explain import explain
from posenc.report.page import write_page
from posenc.report.reports import full_report, rows_table, short_report
from posenc.report.sentences import full_notes
from posenc.results.comparison import CompareRequest, compare_runs
from posenc.results.discovery import load_runs

EVIL = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"
LOSSES = {
    "rope": {0.5: 1.35, 1: 1.30, 2: 2.1, 4: 2.9, 8: 3.4},
    "alibi": {0.5: 1.37, 1: 1.33, 2: 1.331, 4: 1.332, 8: 1.333},
    "nope": {0.5: 1.41, 1: 1.45, 2: 1.9, 4: 2.4, 8: 2.8},
}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def page_of(root, path, *command):
    write_page(path, compare_runs(load_runs([root]), CompareRequest("all")), command)
    return path.read_text()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three encodings x two seeds with curves; one that failed at 8x, one without a number; hostile text."""
    root = tmp_path_factory.mktemp("runs")
    for name, losses in LOSSES.items():
        for seed in (0, 1):
            records = [record(int(m * T), loss + seed / 100) for m, loss in losses.items()]
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


class Elements(HTMLParser):
    """Every element with its attributes, and all text outside of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.text = ""
        self._skip = 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._skip += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._skip -= tag in ("script", "style")

    def handle_data(self, data):
        self.text += "" if self._skip else data


@pytest.fixture(scope="module")
def elements(page):
    return Elements(page)


def test_all_that_the_tables_say_is_in_the_page(root, elements):
    comparison = compare_runs(load_runs([root]))[0]
    tables = [rows_table(comparison), *full_report(comparison).tables]
    shown = [cell.text for one in tables for row in one.rows for cell in row]
    assert len(shown) > 30 and all(text.partition(",")[0] in elements.text for text in shown)
    assert all(line in elements.text for line in full_notes(comparison))
    assert short_report(comparison).answer in elements.text
    assert explain().rstrip() in elements.text  # in its lines
    assert re.search(r"fire-nano-T64-s0-\w+: failed, " + re.escape(EVIL), elements.text)


def test_recall_is_beside_the_losses_with_its_chart(tmp_path):
    """One section, though `--protocol all` has two tables; the losses of recall's windows are no curve."""
    found = {8: 100, 32: 99, 56: 98, 112: 60}
    records = [record(T, 1.0), record(2 * T, 1.1), *recall_records(found)]
    for name in ("rope", "alibi"):
        write_run(tmp_path / "runs", name, records=records)
    page = page_of(tmp_path / "runs", tmp_path / "page.html", "posenc", "compare", "my runs")
    assert "posenc compare 'my runs'" in html.unescape(page)
    assert page.count("<h3>Harm and use</h3>") == page.count("<h3>Change against T</h3>") == 1
    assert "recall@T" in Elements(page).text and "recall, % with 95% CI" in Elements(page).text


def test_strangers_text_makes_no_element_and_nothing_is_loaded(page, elements):
    assert EVIL not in page and EVIL in elements.text  # nor is it a template
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"img", "link", "iframe", "object", "embed", "base", "form"}
    places = [a[key] or "" for _, a in elements.found for key in ("src", "href", "action") if key in a]
    targets = {a["id"] for _, a in elements.found if a.get("id")}
    assert len(places) == 4 and {place[:1] for place in places} == {"#"}
    assert {place[1:] for place in places} <= targets
    charts = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert charts and not set("<>&") & set(charts[1])
    specs = json.loads(charts[1])
    rows = {point.get("row", "") for spec in specs for point in spec["data"]["values"]}
    assert any(EVIL[:20] in row for row in rows) and len(specs) == 4
    for spec in specs:  # what is data elsewhere is part of no expression
        assert EVIL[:20] not in re.sub(r'"(row|text)": "[^"]*"', "", json.dumps(spec["encoding"]))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy and policy[1].startswith("default-src 'none';") and "unsafe" not in policy[1]
    inline = re.findall(r"<script>(.*?)</script>|<style>(.*?)</style>", page, re.DOTALL)
    for script, style in inline:
        digest = base64.b64encode(hashlib.sha256((script or style).encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert len(inline) == 3


def test_the_same_runs_give_the_same_bytes_and_a_failure_leaves_the_old_page(root, page, tmp_path):
    assert page_of(root, tmp_path / f"{root.name}.html") == page and len(page.encode()) < 2_000_000
    folder = tmp_path / "page.html"
    folder.mkdir()
    with pytest.raises(RunError):
        page_of(root, folder)
    assert folder.is_dir() and len(list(tmp_path.iterdir())) == 2


@pytest.fixture
def tab(root, page):
    """The page at the size of a desk; nothing may have been requested, asked or printed on the console."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH")
    file, seen = root.parent / f"{root.name}.html", []
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        tab.on("console", lambda message: seen.append(message.text))
        tab.on("pageerror", lambda error: seen.append(str(error)))
        tab.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
        tab.on("request", lambda one: one.url == file.as_uri() or seen.append(one.url[:80]))
        tab.goto(file.as_uri())
        tab.wait_for_selector("html[data-ready=charts]")
        yield tab
        browser.close()
    assert [one for one in seen if "data:,x" not in one and "Fetch API" not in one] == []  # refused below


@pytest.mark.slow
def test_the_page_in_chromium(tab):
    titles = tab.locator(".chart h3").all_inner_texts()
    assert titles[:3] == ["Loss against context", "Change against T", "Loss by position"] and len(titles) == 4
    assert tab.locator(".plot svg").count() == 4 and tab.locator("img").count() == 0
    plot, lines = tab.locator(".plot").first, tab.locator(".plot").first.locator(".mark-line path")
    assert lines.count() == 4
    box = plot.bounding_box()
    tab.mouse.move(box["x"] + box["width"] - 25, box["y"] + 25)  # the highest point at the right end
    assert tab.locator("#tip").inner_text().startswith("rope\n8x = 512 tokens\n3.405±0.007\n+2.100")
    plot.locator(".role-legend-label text", has_text="rope").click()
    tab.wait_for_timeout(200)
    assert sorted(line.get_attribute("opacity") for line in lines.all()) == ["0.12", "0.12", "0.12", "1"]
    table = tab.locator("#c0 .table").first
    names = table.locator("tbody th:visible")
    head = table.locator("thead th").nth(4)
    head.locator("button").click()
    assert [n.strip() for n in names.all_inner_texts()][:3] == ["alibi", "nope", "rope"]
    head.locator("button").press("Enter")
    assert [n.strip() for n in names.all_inner_texts()][:3] == ["rope", "nope", "alibi"]  # no number: last
    assert head.get_attribute("aria-sort") == "descending"
    table.locator(".filter").fill("COLLAPSED")
    assert sorted(n.strip() for n in names.all_inner_texts()) == ["nope", "rope"]

    def ground():
        return str(tab.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert ground() == "rgb(255, 255, 255)"
    tab.locator("#theme").press("Enter")
    assert ground() != "rgb(255, 255, 255)"
    refused = tab.evaluate("fetch('data:,x').then(() => 'loaded', () => 'refused')")
    assert refused == "refused"
    tab.set_viewport_size({"width": 390, "height": 844})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390

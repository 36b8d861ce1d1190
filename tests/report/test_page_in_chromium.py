"""The page in a real browser: charts, tables, keyboard, light and dark, a phone, paper, hostile names."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from paged import EVIL, page_of, write_runs

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")

Open = Callable[..., Any]
# of every text on the screen: its contrast to the ground behind it, as WCAG 2 counts
CONTRASTS = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => channels(color).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, .skip")) continue;
    let behind = element;
    const clear = (one) => channels(getComputedStyle(one).backgroundColor)[3] === 0;
    while (behind && clear(behind)) behind = behind.parentElement;
    const ground = getComputedStyle(behind ?? document.body).backgroundColor;
    const [a, b] = [light(getComputedStyle(element).color), light(ground)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), element.className + " " + element.textContent.slice(0, 30)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM)
        yield running
        running.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    page_of(write_runs(tmp_path_factory.mktemp("runs")), path)
    return path


@contextmanager
def opened(browser: Any, file: Path) -> Iterator[Open]:
    """Opens the page; at the end nothing may have been requested, said on the console, or asked."""
    heard: list[str] = []
    contexts = []

    def go(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (heard.append("dialog"), dialog.dismiss()))
        page.on("request", lambda one: one.url == file.as_uri() or heard.append(f"request: {one.url[:80]}"))
        page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready=charts]")
        return page

    yield go
    for context in contexts:
        context.close()
    # pictures inside the page are no requests to anybody
    assert [one for one in heard if not one.startswith("request: data:")] == []


@pytest.fixture
def open_page(browser: Any, file: Path) -> Iterator[Open]:
    with opened(browser, file) as go:
        yield go


@pytest.fixture(scope="module")
def page(browser: Any, file: Path) -> Iterator[Any]:
    """One for all tests that leave it as they found it, up to the order of rows."""
    with opened(browser, file) as go:
        yield go()


def names(page: Any, table: str = "#c0 .table >> nth=0") -> list[str]:
    """The row names of a table that are to be seen, in their order."""
    heads = page.locator(table).locator("tbody th:visible")
    return [text.strip() for text in heads.all_inner_texts()]


def lines(page: Any, chart: int = 0) -> int:
    return int(page.locator(".chart").nth(chart).locator(".mark-line path").count())


def test_every_chart_is_drawn(page: Any) -> None:
    titles = page.locator(".chart h3").all_inner_texts()
    assert titles[:3] == ["Loss against context", "Change against T", "Training loss"]
    assert "Loss by position" in titles and page.locator(".plot svg").count() == len(titles)
    assert lines(page, 0) == 4 and lines(page, 2) == 3  # of the fourth row there is no log


def test_nothing_can_be_loaded_and_no_other_script_runs(open_page: Open, browser: Any, file: Path) -> None:
    page = browser.new_page()  # not of open_page: the refusals are told on the console
    page.goto(file.as_uri())
    refused = page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'loaded', () => 'refused')")
    script = "Object.assign(document.createElement('script'), {text: 'window.ran = 1'})"
    page.evaluate(f"document.body.append({script})")
    assert refused == "refused" and page.evaluate("window.ran") is None
    page.close()


def test_hostile_names_stay_text(open_page: Open) -> None:
    page = open_page()
    assert page.locator("img, script[src], iframe").count() == 0
    assert any(EVIL in name for name in names(page))
    button = page.locator(".legend button", has_text="onerror").first
    row = button.get_attribute("data-row")
    page.locator("#c0 .legend button", has_text="hide all").click()
    button.click()
    plot = page.locator(".plot").first
    plot.focus()
    page.keyboard.press("ArrowRight")
    tip = page.locator(".tip").first
    assert row is not None and EVIL[9:] in tip.locator("b").inner_text() and tip.locator("img").count() == 0


def test_tables_sort_by_every_column_with_mouse_and_keyboard(page: Any) -> None:
    table = page.locator("#c0 .table").first
    heads = table.locator("thead th")
    assert heads.count() == 7
    longest = heads.nth(5)
    longest.locator("button").click()
    upward = names(page)
    assert upward[:3] == ["alibi", "nope", "rope"] and longest.get_attribute("aria-sort") == "ascending"
    longest.locator("button").focus()
    page.keyboard.press("Enter")
    assert names(page)[:3] == ["rope", "nope", "alibi"]  # rows without a number stay last
    assert longest.get_attribute("aria-sort") == "descending"
    heads.nth(0).locator("button").click()
    assert names(page) == sorted(names(page), key=str.lower) and longest.get_attribute("aria-sort") == "none"
    heads.nth(5).locator("button").click()
    table.locator(".by").select_option("c")
    assert names(page)[:3] == ["alibi", "nope", "rope"]
    heads.nth(1).locator("button").click()  # at half of T nope gains
    assert names(page)[0] == "nope"


def test_every_table_can_be_sorted_by_every_column(page: Any) -> None:
    tables = page.locator(".table")
    assert tables.count() >= 5
    for i in range(tables.count()):
        before = sorted(names(page, f".table >> nth={i}"))
        for button in tables.nth(i).locator("thead button").all():
            button.click()
            assert sorted(names(page, f".table >> nth={i}")) == before


def test_tables_filter_by_text_and_status(page: Any) -> None:
    table = page.locator("#c0 .table").first
    table.locator(".filter").fill("ROPE")
    assert names(page) == ["rope"] and table.locator(".count").inner_text() == "1 of 5 rows"
    table.locator(".filter").fill("collapsed")
    assert sorted(names(page)) == ["nope", "rope"]
    table.locator(".filter").fill("")
    table.locator(".states").select_option("failed")
    assert names(page) == ["fire"]
    table.locator(".states").select_option("")
    assert len(names(page)) == 5 and table.locator(".count").inner_text() == ""


def test_the_legend_hides_rows_in_every_chart(page: Any) -> None:
    button = page.locator("#c0 .legend button", has_text="rope").first
    button.focus()
    page.keyboard.press("Space")
    page.wait_for_timeout(100)
    assert button.get_attribute("aria-pressed") == "false" and lines(page, 0) == 3 and lines(page, 2) == 2
    page.locator("#c0 .legend button", has_text="hide all").click()
    page.wait_for_timeout(100)
    assert lines(page, 0) == 0
    page.locator("#c0 .legend button", has_text="show all").click()
    page.wait_for_timeout(100)
    assert lines(page, 0) == 4 and button.get_attribute("aria-pressed") == "true"


def test_charts_tell_their_numbers_to_mouse_and_keyboard(page: Any) -> None:
    tip = page.locator(".tip").first
    plot = page.locator(".plot").first
    assert not tip.is_visible()
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text().splitlines()[:3] == ["alibi", "0.5x = 32 tokens", "loss 1.375 ± 0.007 (2 seeds)"]
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    text = tip.inner_text()
    assert "8x = 512 tokens" in text and "change +0.003" in text and "95% interval" in text
    assert "400 targets, 40 documents" in text and "same" in text
    page.keyboard.press("ArrowUp")
    assert tip.inner_text().startswith("nope\n8x")
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 25)  # the highest point at the right end
    assert tip.inner_text().startswith("rope\n8x")


def test_detail_shows_the_range_near_the_lowest(page: Any) -> None:
    figure = page.locator(".chart").first
    before = figure.locator(".role-axis-label text").all_text_contents()
    figure.locator("[data-view=near]").click()
    page.wait_for_timeout(150)
    assert figure.locator(".role-axis-label text").all_text_contents() != before
    assert figure.locator("[data-view=near]").get_attribute("aria-pressed") == "true"


def ground(page: Any) -> list[str]:
    """The ground of the page and the colour of the first line."""
    found: list[str] = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor,"
        "getComputedStyle(document.querySelector('.mark-line path')).stroke]"
    )
    return found


def test_dark_is_the_systems_choice_and_a_button_away(open_page: Open) -> None:
    light, dark = open_page(), open_page(color_scheme="dark")
    by_system = ground(dark)
    assert ground(light)[0] == "rgb(255, 255, 255)"
    assert all(a != b for a, b in zip(ground(light), by_system, strict=True))
    button = light.locator("#theme")
    button.focus()
    light.keyboard.press("Enter")
    assert ground(light) == by_system and button.get_attribute("aria-pressed") == "true"
    dark.locator("#theme").click()
    assert ground(dark)[0] == "rgb(255, 255, 255)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(open_page: Open, scheme: str) -> None:
    found = open_page(color_scheme=scheme).evaluate(CONTRASTS)
    assert len(found) > 200
    assert [(round(ratio, 2), text) for ratio, text in found if ratio < 4.5] == []


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_scrolls_tables_not_the_page(open_page: Open, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 844}, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes, numbers = (f"[...document.querySelectorAll('{one}')]" for one in (".scroll", "td span"))
    assert max(page.evaluate(f"{boxes}.map((box) => box.scrollWidth - box.clientWidth)")) > 100
    assert page.evaluate(f"{numbers}.filter((one) => one.scrollWidth > one.clientWidth + 1).length") == 0
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    plot.tap()
    assert page.locator(".plot svg").first.bounding_box()["width"] < width


def test_it_prints_light_and_without_controls(open_page: Open) -> None:
    page = open_page(color_scheme="dark")
    page.emulate_media(media="print")
    assert ground(page)[0] == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible() and not page.locator(".filter").first.is_visible()
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_without_scripts_there_is_a_picture_and_the_tables(open_page: Open) -> None:
    page = open_page(java_script_enabled=False)
    assert page.locator("img.still").is_visible() and page.locator("img.still").bounding_box()["height"] > 100
    assert len(names(page)) == 5
    for useless in (".tools", ".charts", ".legend", "#theme"):
        assert not page.locator(useless).first.is_visible()


def test_the_first_tab_skips_to_the_comparison(open_page: Open) -> None:
    page = open_page()
    assert page.evaluate("document.documentElement.lang") == "en"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"

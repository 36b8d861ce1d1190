"""The page as text: what is in it, that other people's text stays text, that it asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_runs import T, record, write_run
from paged import EVIL, page_of, write_runs

from posenc.core.errors import RunError
from posenc.report.entries import entry
from posenc.report.page import write_page
from posenc.report.page.markup import Html, el, json_text
from posenc.report.words import captions, spread_is_of
from posenc.results.comparison import compare
from posenc.results.load import load_runs


class Elements(HTMLParser):
    """Every element with its attributes, and all text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._skip = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._skip += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skip -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skip else data


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("paged"))


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    path = root.parent / f"{root.name}.html"
    page_of(root, path)
    return path.read_text()


@pytest.fixture(scope="module")
def elements(page: str) -> Elements:
    return Elements(page)


def test_every_number_of_the_table_and_every_caption_is_in_the_page(root: Path, elements: Elements) -> None:
    comparison = compare(load_runs([root]), "fixed-target", "nats", True)
    of = spread_is_of(comparison)
    shown = [
        line for row in comparison.rows for cell in row.cells for line in entry(cell, "nats", of, "±").lines
    ]
    assert len(shown) > 30 and all(line in elements.text for line in shown)
    assert all(
        line in elements.text for line in captions(comparison, {"lowest": "*", "tie": "=", "unclear": "?"})
    )


def test_runs_that_failed_and_missing_cells_keep_their_reason(elements: Elements) -> None:
    assert re.search(r"fire-nano-T64-s0-\w+: failed, " + re.escape(EVIL), elements.text)
    assert "oom" in elements.text and "not measured" in elements.text


def test_text_of_run_directories_makes_no_element(page: str, elements: Elements) -> None:
    assert page.count(EVIL) == 0 and EVIL in elements.text
    assert [tag for tag, attributes in elements.found if "onerror" in attributes] == []
    assert {a["src"][:9] for tag, a in elements.found if tag == "img" and a["src"]} == {"data:imag"}
    assert sum(tag == "script" for tag, _ in elements.found) == 4


def test_embedded_data_has_no_markup(page: str) -> None:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found and not set("<>&") & set(found[1])
    data = json.loads(found[1])
    assert any(EVIL in name for name in data["rows"])
    assert EVIL not in json.dumps(data["charts"]), "the specifications hold no text of other people"


def test_the_policy_allows_the_pages_own_scripts_and_styles_only(page: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy and policy[1].startswith("default-src 'none';") and "unsafe" not in policy[1]
    inline = re.findall(r"<script>(.*?)</script>|<style>(.*?)</style>", page, re.DOTALL)
    assert len(inline) == 4
    for script, style in inline:
        digest = base64.b64encode(hashlib.sha256((script or style).encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]


def test_nothing_points_outside(elements: Elements) -> None:
    places = [a[key] or "" for _, a in elements.found for key in ("src", "href", "action") if key in a]
    assert len(places) > 8 and all(place.startswith(("#", "data:image/")) for place in places)
    assert not {tag for tag, _ in elements.found} & {"link", "iframe", "object", "embed", "base", "form"}
    targets = {a["id"] for _, a in elements.found if a.get("id")}
    assert {place[1:] for place in places if place.startswith("#")} <= targets


def test_it_is_small_and_the_same_runs_give_the_same_bytes(root: Path, page: str, tmp_path: Path) -> None:
    page_of(root, tmp_path / f"{root.name}.html")
    assert (tmp_path / f"{root.name}.html").read_text() == page
    assert len(page.encode()) < 2_000_000


def test_a_page_that_cannot_be_written_leaves_the_old_one(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page.html"
    folder.mkdir()
    with pytest.raises(RunError):
        page_of(root, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_only_settings_that_differ_are_shown_as_differences(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs, "rope", params={"base": 10000.0})
    write_run(runs, "rope", params={"base": 500.0})
    write_run(runs, "alibi", seed=1)
    path = tmp_path / "page.html"
    page_of(runs, path)
    part = re.search(
        r'<section id="settings">.*?</section>|<section[^>]*id="settings".*?</section>', path.read_text()
    )
    assert part
    text = Elements(part[0]).text
    assert "encoding.base" in text and "500" in text and "10000" in text
    assert "seed" not in text and "train.lr" not in text


def test_full_settings_of_every_run_are_in_the_page(page: str, root: Path) -> None:
    text = html.unescape(page)
    assert "train.lr = 0.003" in text and "encoding.base = 10000" in text and f"{EVIL} = {EVIL}" in text
    assert all(path.name in text for path in root.iterdir())


def test_facets_are_sections(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for length, name in ((64, "a"), (128, "b")):
        records = [record(m * length, 1.0 + m / 10, train_length=length) for m in (1, 2)]
        write_run(
            runs,
            "rope",
            name=name,
            records=records,
            facts={"context_length": length},
            config={"context_length": length},
        )
    loaded = load_runs([runs])
    comparisons = [compare([one], "fixed-target", "nats", False) for one in loaded]
    for comparison, length in zip(comparisons, (64, 128), strict=True):
        comparison.header["facet"] = {"key": "context_length", "value": str(length)}
    write_page(tmp_path / "page.html", loaded, comparisons)
    text = (tmp_path / "page.html").read_text()
    assert (
        "<h2>context_length 64</h2>" in text
        and "<h2>context_length 128</h2>" in text
        and "--facet context_length" in text
    )


def test_the_command_that_was_given_is_shown(root: Path, tmp_path: Path) -> None:
    runs = load_runs([root])
    comparisons = [compare(runs, "fixed-target", "nats", True)]
    write_page(
        tmp_path / "page.html", runs, comparisons, ["posenc", "compare", "my runs", "--html", "x.html"]
    )
    assert "posenc compare &#x27;my runs&#x27; --html x.html" in (tmp_path / "page.html").read_text()


def test_runs_without_any_number_make_a_page(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "rope", results=False, status="failed", reason="disk full")
    page_of(tmp_path / "runs", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "disk full" in text and "no run has a number yet" in text


def test_children_and_attributes_are_escaped_unless_markup() -> None:
    assert el("p", "<b>&\n", title='"x"') == '<p title="&quot;x&quot;">&lt;b&gt;&amp;\\n</p>'
    assert el("p", Html("<br>"), hidden=True, id=None) == "<p hidden><br></p>"
    assert json_text({"a": "</Script>&"}) == '{"a":"\\u003c/Script\\u003e\\u0026"}'


def test_widths_of_the_fake_runs(root: Path) -> None:
    """The runs behind these tests are what they claim to be."""
    runs = load_runs([root])
    assert sorted({run.state for run in runs}) == ["failed", "finished"] and len(runs) == 8
    assert {record["window"] for run in runs for record in run.records} >= {T // 2, T, 8 * T}

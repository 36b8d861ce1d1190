"""A published table beside a comparison, as it is printed."""

import io
import json

import pytest

from posenc.core.errors import UserError
from posenc.report.against import show_against
from posenc.results import load_runs
from posenc.results.published import against

TABLE = "scale-invariant-needle"


@pytest.fixture
def beside(recalling):
    return against(load_runs([recalling]), TABLE)


def printed(beside, format):
    stream = io.StringIO()
    show_against(beside, format, stream)
    return stream.getvalue()


def test_accuracies_are_printed_as_shares(beside):
    text = printed(beside, "markdown")
    assert "| rope | " in text
    assert "| 0.140 | -0.830 |" in text
    assert "nats" not in text


def test_both_sides_are_named(beside):
    text = printed(beside, "table")
    assert "published: " in text
    assert "measured: " in text


def test_json_has_every_line_and_both_sides_settings(beside):
    document = json.loads(printed(beside, "json"))
    assert document["table"] == TABLE
    assert document["measured"]["protocol"] == "recall"
    assert len(document["rows"]) == len(beside.rows)


def test_an_unknown_format_is_refused(beside):
    with pytest.raises(UserError, match="no such format with --against"):
        show_against(beside, "latex", io.StringIO())

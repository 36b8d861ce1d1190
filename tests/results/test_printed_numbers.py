"""Numbers as tables print them."""

import math

import pytest

from posenc.results.numbers import as_text, printed, printed_change


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (1.2346, "nats", "1.235"),
        (-0.0001, "nats", "0.000"),
        (12.346, "ppl", "12.35"),
        (1234.6, "ppl", "1235"),
        (2e6, "ppl", "2.00e+06"),
        (2e30, "ppl", ">1e30"),
    ],
)
def test_a_value(value, metric, text):
    assert printed(value, metric) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "+0.500"),
        (-0.5, "-0.500"),
        (-0.0001, "+0.000"),
        (math.inf, ">+1e30"),
        (-math.inf, "<-1e30"),
    ],
)
def test_a_change_has_its_sign(value, text):
    assert printed_change(value, "nats") == text


@pytest.mark.parametrize("number", [1000, -3, 10**15, 2**53])
def test_a_whole_number_has_the_same_text_if_it_is_written_as_a_float(number):
    assert as_text(float(number)) == as_text(number) == str(number)

"""Lengths are tokens or multiples."""

import pytest

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir, load_yaml
from posenc.evaluation.lengths import LONGEST_DEFAULT, EvalLengths, nearest_length, resolve_lengths


def test_lengths_are_tokens_or_multiples():
    assert resolve_lengths(["8x", "0.5x", 128, "1x", 64, "64", "1.25x"], 64) == [32, 64, 80, 128, 512]


@pytest.mark.parametrize("bad", [0, "-1x", "x", "2y", 1.5, True, None, "0.3x", "१x0"])
def test_what_is_no_length_is_refused(bad):
    with pytest.raises(UserError) as caught:
        resolve_lengths(["1x", bad], 64)
    assert caught.value.key == "eval.lengths"
    assert caught.value.value == bad


def test_the_longest_default_length_is_that_of_the_yaml():
    lengths = load_yaml(conf_dir() / "eval" / "default.yaml")["lengths"]
    assert resolve_lengths(lengths, 64)[-1] == LONGEST_DEFAULT * 64


def test_without_any_length_there_is_nothing_to_measure():
    with pytest.raises(UserError, match="no length"):
        resolve_lengths([], 64)


@pytest.mark.parametrize(("length", "tokens"), [("0.3x", 19), ("1x", 64), (7, 7)])
def test_a_multiple_can_be_rounded_to_tokens(length, tokens):
    assert nearest_length("eval.recall.distances", length, 64) == tokens


def test_windows_are_sorted_and_each_stands_once():
    assert EvalLengths.of([8, 2, 8, 4], 4).windows == (2, 4, 8)


def test_windows_of_t_are_not_beyond_training():
    assert EvalLengths.of([8, 2, 4], 4).beyond_training == [8]

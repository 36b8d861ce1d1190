from typing import Any

import pytest

from posenc.core.errors import UserError
from posenc.evaluation import resolve_lengths


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (["0.5x", "1x", "2x", "8x"], [32, 64, 128, 512]),
        ([128, "1x", 64, "64"], [64, 128]),
        (["1.25x", 1], [1, 80]),
        (["8x", "0.5x"], [32, 512]),
    ],
)
def test_multiples_and_tokens_become_ascending_windows(lengths: list[Any], expected: list[int]) -> None:
    assert resolve_lengths(lengths, 64) == expected


@pytest.mark.parametrize(
    "bad", [0, -1, "0x", "-1x", "x", "", "2y", 1.5, True, None, "1e3", "0.3x", [1], "१x0"]
)
def test_what_is_no_length_is_named(bad: Any) -> None:
    with pytest.raises(UserError) as caught:
        resolve_lengths(["1x", bad], 64)
    assert caught.value.key == "eval.lengths" and caught.value.value == bad
    assert "multiples of context_length" in str(caught.value.allowed)

from typing import Any

import pytest

from posenc.core.errors import UserError
from posenc.evaluation import resolve_lengths


def test_multiples_and_tokens_become_ascending_windows() -> None:
    assert resolve_lengths(["8x", "0.5x", 128, "1x", 64, "64", "1.25x"], 64) == [32, 64, 80, 128, 512]


@pytest.mark.parametrize("bad", [0, "-1x", "x", "2y", 1.5, True, None, "0.3x", "१x0"])
def test_what_is_no_length_is_named(bad: Any) -> None:
    with pytest.raises(UserError) as caught:
        resolve_lengths(["1x", bad], 64)
    assert caught.value.key == "eval.lengths" and caught.value.value == bad

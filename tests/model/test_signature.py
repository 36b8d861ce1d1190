"""Settings are checked against a function's keyword-only parameters."""

from typing import Any, Literal

import pytest

from posenc.core.errors import UserError
from posenc.core.signature import check_arguments


def function(
    known: int,
    *,
    base: float,
    count: int,
    layout: Literal["half", "interleaved"],
    reach: int | None,
    parts: list[str],
    factor: Literal["auto"] | float = "auto",
    flag: bool = False,
    table: dict[str, int] | None = None,
) -> None: ...


GOOD: dict[str, Any] = {"base": 1.5, "count": 2, "layout": "half", "reach": None, "parts": ["a", "b"]}


def check(**changed: Any) -> dict[str, Any]:
    return check_arguments(function, {**GOOD, **changed}, "group")


def test_right_arguments_come_back_unchanged() -> None:
    assert check() == GOOD
    for key, value in {"reach": 3, "flag": True, "factor": "auto", "table": {"a": 1}}.items():
        assert check(**{key: value})[key] == value
    value = check(base=3)["base"]  # a whole number is taken for a float
    assert value == 3.0 and type(value) is float


WRONG: dict[str, tuple[Any, ...]] = {
    "base": ("10", None, True, [1.0]),
    "count": (2.0, True, "2", None),
    "reach": ("far", 2.5, False),
    "flag": (1, "true"),
    "layout": ("Half", None, ["half"]),
    "factor": ("automatic", True),
    "parts": ("a", ["a", 1], None),
    "table": (["a"],),
}


@pytest.mark.parametrize("key", WRONG)
def test_wrong_types_are_refused(key: str) -> None:
    for value in WRONG[key]:
        with pytest.raises(UserError) as caught:
            check(**{key: value})
        assert caught.value.key.startswith(f"group.{key}") and caught.value.allowed


def test_unknown_and_missing_keys_are_named() -> None:
    with pytest.raises(UserError, match=r"did you mean: group\.layout") as caught:
        check(layuot="half")
    assert caught.value.key == "group.layuot"
    with pytest.raises(UserError, match="did you mean: interleaved"):
        check(layout="interleave")
    with pytest.raises(UserError, match=r"group\.known"):  # not keyword-only
        check(known=1)
    with pytest.raises(UserError, match="missing") as caught:
        check_arguments(function, {key: GOOD[key] for key in GOOD if key != "count"}, "group")
    assert caught.value.key == "group.count"

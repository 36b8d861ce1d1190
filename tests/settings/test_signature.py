"""Parameters of a choice are checked by the signature of what takes them."""

from typing import Annotated, Any, List, Literal  # noqa: UP035

import pytest
from annotated_types import Ge, MinLen
from pydantic import Field

from posenc.core.errors import UserError
from posenc.settings.base import Choice
from posenc.settings.numbers import LARGEST_WHOLE
from posenc.settings.signature import check_arguments, check_choice, defaults_of, parameters_of


def function(
    known: int,
    *,
    base: float,
    count: int,
    layout: Literal["half", "interleaved"],
    reach: int | None,
    parts: list[str],
    **options: Any,
) -> None: ...


def with_defaults(
    *, factor: Literal["auto"] | float = "auto", flag: bool = False, table: dict[str, int] | None = None
) -> None: ...


def of_an_author(
    *,
    keys: Annotated[int, Ge(1)] = 1,
    reach: Annotated[int | None, Ge(1)] = None,
    word: Annotated[Literal["auto"] | int, Field(description="keys")] = "auto",
    pair: tuple[int, int] = (1, 2),
    several: tuple[int, ...] = (),
    widths: Annotated[list[int], MinLen(1)] = [1],  # noqa: B006
    bare: List = [],  # noqa: B006, UP006
) -> None: ...


class AnEncoding:
    def __init__(self, shape: Any, slope: float, *, width: int = 3) -> None: ...


GOOD: dict[str, Any] = {"base": 1.5, "count": 2, "layout": "half", "reach": None, "parts": ["a", "b"]}


def check(**changed: Any) -> dict[str, Any]:
    return check_arguments(function, {**GOOD, **changed}, "group")


def test_right_arguments_come_back_unchanged() -> None:
    assert check() == GOOD


@pytest.mark.parametrize(
    ("key", "value"),
    [("factor", "auto"), ("factor", 2.0), ("flag", True), ("table", {"a": 1}), ("table", None)],
)
def test_arguments_with_defaults_may_be_given(key: str, value: Any) -> None:
    assert check_arguments(with_defaults, {key: value}, "group") == {key: value}


def test_a_whole_number_is_taken_for_a_number() -> None:
    assert repr(check(base=3)["base"]) == "3.0"


def test_a_number_without_a_fraction_is_taken_for_a_whole_one() -> None:
    assert repr(check(count=2.0)["count"]) == "2"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("base", "10"),
        ("base", None),
        ("base", True),
        ("base", [1.0]),
        ("base", float("inf")),
        ("count", 2.5),
        ("count", True),
        ("count", "2"),
        ("count", None),
        ("count", 2**63),
        ("reach", "far"),
        ("reach", 2.5),
        ("reach", False),
        ("layout", "Half"),
        ("layout", None),
        ("layout", ["half"]),
        ("parts", "a"),
        ("parts", ["a", 1]),
        ("parts", None),
    ],
)
def test_wrong_types_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        check(**{key: value})
    assert caught.value.key.startswith(f"group.{key}")
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("key", "value"), [("flag", 1), ("flag", "true"), ("factor", "automatic"), ("table", ["a"])]
)
def test_wrong_types_beside_defaults_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        check_arguments(with_defaults, {key: value}, "group")
    assert caught.value.key == f"group.{key}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("keys", True),
        ("keys", "7"),
        ("keys", 0),
        ("reach", True),
        ("reach", 0),
        ("word", True),
        ("word", "7"),
        ("pair", [1, True]),
        ("pair", [1, "7"]),
        ("pair", [1]),
        ("several", [True]),
        ("widths", []),
        ("widths", ["7"]),
    ],
)
def test_wrong_types_within_a_type_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        check_arguments(of_an_author, {key: value}, "group")
    assert caught.value.key.startswith(f"group.{key}")


@pytest.mark.parametrize(
    ("key", "value", "checked"),
    [
        ("keys", 4.0, 4),
        ("reach", None, None),
        ("reach", 3, 3),
        ("word", "auto", "auto"),
        ("word", 3, 3),
        ("pair", [1, 2.0], (1, 2)),
        ("several", [1, 2, 3], (1, 2, 3)),
        ("widths", [2.0], [2]),
        ("bare", [1], [1]),
    ],
)
def test_right_types_within_a_type_are_taken(key: str, value: Any, checked: Any) -> None:
    assert check_arguments(of_an_author, {key: value}, "group") == {key: checked}


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("reach", 0, "a whole number from 1, or null"),
        ("several", [True], "a list [a,b], each a whole number"),
    ],
)
def test_a_type_within_a_type_says_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(UserError) as caught:
        check_arguments(of_an_author, {key: value}, "group")
    assert caught.value.allowed == allowed


def test_an_unknown_key_gets_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"did you mean: group\.layout") as caught:
        check(layuot="half")
    assert caught.value.key == "group.layuot"


def test_an_unknown_word_gets_the_nearest_one() -> None:
    with pytest.raises(UserError, match="did you mean: interleaved"):
        check(layout="interleave")


@pytest.mark.parametrize("key", ["base", "layout", "parts"])
def test_null_must_be_given(key: str) -> None:
    with pytest.raises(UserError, match=rf"group\.{key}=null: must be given"):
        check(**{key: None})


def test_a_number_that_is_too_large_is_printed_as_it_was_written() -> None:
    with pytest.raises(UserError, match=r"group\.count=1e30: too large") as caught:
        check(count=1e30)
    assert caught.value.allowed == f"up to {LARGEST_WHOLE}"


def test_a_function_without_parameters_says_so() -> None:
    with pytest.raises(UserError, match="allowed: none: it has no parameters"):
        check_arguments(lambda: None, {"base": 1}, "group")


def test_only_keyword_parameters_are_settings() -> None:
    with pytest.raises(UserError, match=r"group\.known"):
        check(known=1)


def test_a_missing_key_is_named() -> None:
    without_count = {key: value for key, value in GOOD.items() if key != "count"}
    with pytest.raises(UserError, match="has no default and no value") as caught:
        check_arguments(function, without_count, "group")
    assert caught.value.key == "group.count"


def test_behind_shape_every_parameter_is_a_setting() -> None:
    assert parameters_of(AnEncoding) == {"slope": float, "width": int}


def test_defaults_are_those_of_the_class() -> None:
    assert defaults_of(AnEncoding) == {"width": 3}


def test_a_choice_is_checked_by_what_it_names() -> None:
    choice = Choice(name="mine", slope=1)
    assert check_choice("group", choice, {"mine": AnEncoding}, "there is none") == {"slope": 1.0}


def test_an_unknown_choice_gets_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean: mine"):
        check_choice("group", Choice(name="min"), {"mine": AnEncoding}, "there is none")

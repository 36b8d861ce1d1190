import math
from typing import Any, Literal

import pytest

from posenc.core.errors import UserError
from posenc.core.signature import check_arguments, parameters_of


def function(
    known: int,
    *,
    base: float,
    count: int,
    layout: Literal["half", "interleaved"],
    reach: int | None,
    parts: list[str],
    share: float | None = None,
    flag: bool = False,
    factor: Literal["auto"] | float = "auto",
    level: Literal[1, 2] = 1,
    both: Literal[True, "auto"] = "auto",
    table: dict[str, int] | None = None,
    sizes: list | None = None,  # type: ignore[type-arg]
    free: Any = None,
) -> None: ...


GOOD: dict[str, Any] = {"base": 1.5, "count": 2, "layout": "half", "reach": None, "parts": ["a", "b"]}


def check(**changed: Any) -> dict[str, Any]:
    return check_arguments(function, {**GOOD, **changed}, "group")


def test_right_arguments_come_back_unchanged() -> None:
    assert check() == GOOD
    for key, value in {
        "reach": 3,
        "share": 0.5,
        "flag": True,
        "factor": "auto",
        "level": 2,
        "both": True,
        "table": {"a": 1},
        "sizes": [1, "b"],
        "free": object,
    }.items():
        assert check(**{key: value})[key] == value
    assert check(both="auto")["both"] == "auto"
    assert check(share=None, sizes=None, table=None)["share"] is None


def test_only_keyword_only_parameters_count() -> None:
    assert "known" not in parameters_of(function)
    assert set(GOOD) < set(parameters_of(function))
    with pytest.raises(UserError, match=r"group\.known"):
        check(known=1)


def test_of_a_class_its_init_counts() -> None:
    class Thing:
        def __init__(self, shape: int, *, width: int) -> None: ...

    assert parameters_of(Thing) == {"width": int}
    assert check_arguments(Thing, {"width": 3}, "thing") == {"width": 3}
    with pytest.raises(UserError, match=r"thing\.width"):
        check_arguments(Thing, {"width": "3"}, "thing")


@pytest.mark.parametrize("key", ["base", "share", "factor"])
def test_a_whole_number_is_taken_for_a_float(key: str) -> None:
    value = check(**{key: 3})[key]
    assert value == 3.0 and type(value) is float


@pytest.mark.parametrize(
    "key, value",
    [
        ("base", "10"),
        ("base", None),
        ("base", True),
        ("base", [1.0]),
        ("count", 2.0),
        ("count", True),
        ("count", "2"),
        ("count", None),
        ("reach", "far"),
        ("reach", 2.5),
        ("reach", False),
        ("share", "half"),
        ("share", True),
        ("flag", 1),
        ("flag", "true"),
        ("layout", "Half"),
        ("layout", None),
        ("layout", ["half"]),
        ("level", 3),
        ("level", True),
        ("level", 1.0),
        ("both", False),
        ("both", 1),
        ("factor", "automatic"),
        ("factor", True),
        ("parts", "a"),
        ("parts", ["a", 1]),
        ("parts", None),
        ("table", ["a"]),
        ("sizes", "abc"),
    ],
)
def test_wrong_types_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        check(**{key: value})
    assert caught.value.key.startswith(f"group.{key}")
    assert caught.value.allowed


def test_the_item_of_a_list_is_named() -> None:
    with pytest.raises(UserError) as caught:
        check(parts=["a", 1])
    assert caught.value.key == "group.parts[1]"


def test_words_of_a_type() -> None:
    with pytest.raises(UserError, match="allowed: a whole number or null"):
        check(reach="x")
    with pytest.raises(UserError, match="allowed: a list, each text"):
        check(parts=3)


def test_unknown_keys_give_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean: group\.layout") as caught:
        check(layuot="half")
    assert caught.value.key == "group.layuot"
    with pytest.raises(UserError) as far:
        check(zzzz=1)
    assert "did you mean" not in str(far.value)
    with pytest.raises(UserError, match="it has no parameters"):
        check_arguments(lambda: None, {"a": 1}, "group")


def test_a_missing_key_is_named_and_defaults_are_not_missing() -> None:
    with pytest.raises(UserError, match="missing") as caught:
        check_arguments(function, {key: GOOD[key] for key in GOOD if key != "count"}, "group")
    assert caught.value.key == "group.count"


def test_a_literal_choice_gives_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean: interleaved"):
        check(layout="interleave")


def test_not_a_number_is_a_float_here() -> None:
    assert math.isnan(check(base=math.nan)["base"])  # its range is the taker's business

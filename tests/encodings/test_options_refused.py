"""Options: what is refused, and how it says so."""

from typing import Any

import pytest
import torch
from decoding import T, encoding, model_of, text
from optioned import CONTIGUOUS, DENSE, OFFSET, RANDOMIZED, options

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings import list_encodings
from posenc.encodings.options import Randomized, SSMax, Window, check_positions, position_limit


def test_nothing_asked_for_is_no_option() -> None:
    own = encoding("rope")
    assert options(own) == []
    assert [type(option) for option in options(own, RANDOMIZED, 5, "ssmax")] == [Randomized, Window, SSMax]
    assert model_of(own).effective_encoding is own


def ways() -> list[tuple[str, dict[str, Any]]]:
    return [
        ("positions", {"positions": RANDOMIZED}),
        ("positions", {"positions": OFFSET}),
        ("attention.window", {"window": 5}),
        ("attention.scale", {"scale": "logn"}),
        ("attention.scale", {"scale": "ssmax"}),
    ]


@pytest.mark.parametrize("option, chosen", ways(), ids=str)
@pytest.mark.parametrize("name", list_encodings())
def test_taken_or_refused_by_name(name: str, option: str, chosen: dict[str, Any]) -> None:
    own = encoding(name, limit=position_limit(chosen.get("positions", CONTIGUOUS), T))
    if option in own.refuses or (option == "positions" and not own.uses_positions):
        with pytest.raises(UserError) as caught:
            options(own, **chosen)
        said = caught.value.text()
        assert option in said and f"encoding={name}" in said
        assert own.refuses.get(option, "it reads no position") in said
    else:
        model = model_of(own, *options(own, **chosen))
        pos = model.train().positions(T, generator_for(0, "test"))
        assert model(torch.tensor([text(T)]), pos).isfinite().all()


def test_who_refuses_what() -> None:
    refusing = {
        option: {name for name in list_encodings() if option in encoding(name).refuses}
        for option in ("attention.window", "attention.scale", "positions")
    }
    assert refusing["attention.window"] >= {"rnope_swa"} and refusing["attention.scale"] >= {"stick_breaking"}
    known = {"attention.window", "attention.scale", "positions"}
    assert all(set(encoding(name).refuses) <= known for name in list_encodings())


@pytest.mark.parametrize(
    "chosen, says",
    [
        ({"window": 0}, "window=0"),
        ({"window": -3}, "window=-3"),
        ({"positions": {**RANDOMIZED, "max": T - 1}}, rf"positions\.max={T - 1}.*context_length={T}"),
        ({"positions": {**OFFSET, "max": 1}}, r"positions\.max=1"),
    ],
)
def test_values_out_of_range(chosen: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        options(encoding("rope"), **chosen)


@pytest.mark.parametrize("scale", ["logn", "ssmax"])
def test_a_scale_needs_a_length_whose_logarithm_is_not_zero(scale: str) -> None:
    with pytest.raises(UserError, match="context_length=1"):
        options(encoding("rope", train_length=1), scale=scale)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"name": "random"}, "no such positions"),
        ({"name": "randomized", "max": "many", "dense": False}, r"positions\.max"),
        ({"name": "randomized", "max": None, "dense": 3}, r"positions\.dense"),
        ({"name": "offset", "max": None, "dense": True}, r"positions\.dense"),
        ({"name": "contiguous", "max": 5}, r"positions\.max"),
    ],
)
def test_settings_of_positions_that_are_wrong(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_positions(settings)


@pytest.mark.parametrize("settings", [CONTIGUOUS, RANDOMIZED, DENSE, OFFSET, {**OFFSET, "max": 99}])
def test_settings_of_positions_that_are_right(settings: dict[str, Any]) -> None:
    assert check_positions(settings) == settings

"""The group `positions`: which positions the tokens of a window get, for any encoding.

Each choice is a module here with a class that has a `name`, and `conf/positions/<name>.yaml`. `contiguous`,
0..n-1, is what every encoding does by itself.
"""

import functools
from collections.abc import Mapping
from typing import Any

from posenc.encodings.base import Encoding
from posenc.encodings.modules import classes_with_a_name
from posenc.encodings.positions.drawn import DrawnPositions
from posenc.settings.base import Choice
from posenc.settings.signature import check_choice

CONTIGUOUS = "contiguous"


@functools.cache
def drawn_positions() -> dict[str, type[DrawnPositions]]:
    """Return the classes of drawn positions, by the name that `positions` takes."""
    return classes_with_a_name(__name__, __path__, DrawnPositions)


def check_positions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `positions` group with names and types checked. Raises UserError."""
    # The base class stands for no draw: it has no settings, and its positions are 0..n-1.
    choices: dict[str, type[Encoding]] = {CONTIGUOUS: Encoding, **drawn_positions()}
    choice = Choice.model_validate(settings)
    parameters = check_choice("positions", choice, choices, "there are no such positions")
    return {"name": choice.name, **parameters}


def position_limits(settings: Mapping[str, Any], train_length: int) -> tuple[int | None, int | None]:
    """Return the limits below which training draws positions and distances; None stands for T."""
    cls = drawn_positions().get(settings["name"])
    if cls is None:
        return None, None
    position_limit = cls.limit_for(train_length, settings["max"])
    distance_limit = position_limit if cls.gaps else None
    return position_limit, distance_limit

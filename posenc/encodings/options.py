"""Build the small encodings that act together with an encoding: drawn positions, options of the attention."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from posenc.core.errors import UserError
from posenc.encodings.attention_options import chosen_options
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.positions import drawn_positions
from posenc.encodings.positions.drawn import DrawnPositions
from posenc.settings.base import without_name


def build_options(
    shape: Shape,
    encoding: Encoding,
    *,
    positions: Mapping[str, Any],
    attention: Mapping[str, Any],
    is_decoupled: bool = False,
) -> list[Encoding]:
    """Build the options of the groups `positions` and `attention`, in the order in which they act.

    `is_decoupled` is True for latent attention, where the encoding acts on a rotary part added to each head.
    Raises UserError for values out of range, and for an option that the encoding or the attention refuses.
    """
    options: list[Encoding] = []
    # `contiguous` is not among them, since every encoding does that by itself.
    drawn = drawn_positions().get(positions["name"])
    if drawn is not None:
        check_accepted(encoding, "positions", drawn.name)
        with reported_as("positions", drawn.name):
            options.append(drawn(shape, **without_name(positions)))
    for cls, value in chosen_options(attention):
        key = f"attention.{cls.key}"
        if is_decoupled and cls.misfit_of_latents is not None:
            problem = f"makes no sense with attention={attention['name']}: {cls.misfit_of_latents}"
            raise UserError(key, value, problem, hint="attention=mha")
        check_accepted(encoding, key, value, cls.misfit(encoding), hint=cls.hint_at_misfit)
        with reported_as(key, value):
            # With the options before it, so that a count of visible keys knows the window.
            options.append(cls.for_value(shape, value, (encoding, *options)))
    return options


def warnings_of_options(encoding: Encoding, options: Iterable[Encoding]) -> list[str]:
    """Return a warning for each option that acts and cannot change a score of the encoding."""
    return [
        f"positions={option.name} changes no number but by rounding: {encoding.name} sees distances alone"
        for option in options
        if isinstance(option, DrawnPositions) and encoding.relative and not option.gaps
    ]


def check_accepted(
    encoding: Encoding, key: str, value: object, misfit: str | None = None, *, hint: str = ""
) -> None:
    """Raise UserError if the option `key` makes no sense with the encoding.

    The encoding may declare the reason in `refuses`. Otherwise the option may have found a reason, `misfit`,
    to which `hint` belongs.
    """
    # What an encoding declares comes first: it knows a better reason than its hooks tell.
    is_declared = key in encoding.refuses
    reason = encoding.refuses[key] if is_declared else misfit
    if reason is None and key == "positions" and not encoding.uses_positions:
        reason = "it reads no position, so nothing would change"
    if reason is not None:
        name = getattr(encoding, "name", type(encoding).__name__)
        problem = f"makes no sense with encoding={name}: {reason}"
        raise UserError(key, value, problem, hint="" if is_declared else hint)


@contextmanager
def reported_as(key: str, value: object) -> Iterator[None]:
    """Turn a ValueError that is raised inside into a UserError that names the setting."""
    try:
        yield
    except ValueError as error:
        raise UserError(key, value, str(error)) from error

"""Single overrides as Hydra's grammar reads them."""

from __future__ import annotations

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from posenc.config.hints import hint_at_word
from posenc.core.errors import UserError


def is_sweep(override: str) -> bool:
    """Tell whether an override has several values. Raises UserError for one that cannot be read."""
    try:
        return OverridesParser.create().parse_override(override).is_sweep_override()
    except (HydraException, ValueError) as error:  # a number of more than 4,300 digits
        raise unreadable(override) from error


def unreadable(override: str) -> UserError:
    """Return the error for a word that is no KEY=VALUE."""
    return UserError(override, None, "cannot be read as KEY=VALUE", hint=hint_at_word(override))

"""Read single overrides by Hydra's grammar."""

from __future__ import annotations

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from posenc.config.hints import hint_at_word
from posenc.core.errors import UserError


def has_several_values(override: str) -> bool:
    """Tell whether an override has several values. Raises UserError for one that cannot be read."""
    try:
        # Needs no initialized Hydra: only the grammar is asked, and not what a value means.
        return OverridesParser.create().parse_override(override).is_sweep_override()
    except (HydraException, ValueError) as error:  # Python refuses numbers of more than 4,300 digits
        raise unreadable_override(override) from error


def unreadable_override(override: str) -> UserError:
    """Return the error for an argument that is not KEY=VALUE."""
    return UserError(override, None, "cannot be read as KEY=VALUE", hint=hint_at_word(override))

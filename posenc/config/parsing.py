"""Single overrides as Hydra's grammar reads them."""

from __future__ import annotations

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from posenc.core.errors import UserError
from posenc.core.paths import choice_files


def is_sweep(override: str) -> bool:
    """Tell whether an override has several values. Raises UserError for one that cannot be read."""
    try:
        return OverridesParser.create().parse_override(override).is_sweep_override()
    except HydraException as error:
        raise unreadable(override) from error


def unreadable(override: str) -> UserError:
    """Return the error for a word that is no KEY=VALUE."""
    hint = "no spaces around '='; quote what holds spaces or brackets:\n'eval.lengths=[1x,2x]'"
    if override in choice_files("encoding"):
        hint = f"did you mean: encoding={override}"
    return UserError(override, None, "cannot be read as KEY=VALUE", hint=hint)

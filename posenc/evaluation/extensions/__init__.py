"""Test-time extensions, `extend=NAME`: changes to a trained model for windows beyond its training length.

Each is a module of this folder with one class, and `conf/extend/<name>.yaml` with its knobs. Nothing is
trained, and the trained model is never changed: an extension makes another encoding, which acts in its place.
"""

import functools
from collections.abc import Mapping
from typing import Any

from posenc.core.errors import UserError
from posenc.core.paths import choice_file, mapping_in
from posenc.encodings.modules import classes_with_a_name
from posenc.evaluation.extensions.base import Extension, Length, NotForThisEncodingError, Times, leaves
from posenc.evaluation.models import MeasuredModel
from posenc.settings.base import Choice, without_name
from posenc.settings.signature import check_choice
from posenc.settings.tree import NONE

__all__ = [
    "Extension",
    "Length",
    "NotForThisEncodingError",
    "Times",
    "build_extension",
    "default_knobs",
    "extensions",
    "leaves",
    "resolve_extend",
]


@functools.cache
def extensions() -> dict[str, type[Extension]]:
    """Return the class of every extension by its name; `none` is not among them."""
    return classes_with_a_name(__name__, __path__, Extension)


def resolve_extend(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check the `extend` group and return it as a record stores it. Raises UserError.

    Knobs that were added later are left out if they change nothing, so that records without them are found.
    """
    choices: dict[str, type] = {NONE: object, **extensions()}  # `object` has no knobs
    name = settings.get("name")
    if not isinstance(name, str):
        raise UserError("extend", name, "there is no such extension", allowed=list(choices))
    cls = extensions().get(name)
    # An unknown name goes on to `check_choice`, whose error names the nearest extension.
    later = {} if cls is None else cls.later
    choice = Choice.model_validate({**later, **settings})  # settings of a stored record may lack them
    knobs = check_choice("extend", choice, choices, "there is no such extension")
    stored = {knob: value for knob, value in knobs.items() if knob not in later or value != later[knob]}
    return {"name": choice.name, **stored}


def build_extension(
    settings: Mapping[str, Any], model: MeasuredModel, *, tune: bool = False
) -> Extension | None:
    """Build the extension for this model; None for `none`. Missing knobs come from its YAML.

    Raises UserError, among other things for an extension whose knobs have no default (`longrope`). With
    `tune` it may lack them, since they are chosen on validation documents before it acts.
    """
    defaults = default_knobs(str(settings.get("name")))
    resolved = resolve_extend({**defaults, **settings})
    if resolved["name"] == NONE:
        return None
    cls = extensions()[resolved["name"]]
    knobs = {**cls.later, **without_name(resolved)}
    try:
        # The constructor may refuse the model, so it runs for outlines without weights as well.
        extension = cls(model, **knobs)
    except UserError as error:
        if isinstance(error, NotForThisEncodingError) or knobs != defaults:
            raise  # a value of the user's is out of range; below, even the defaults are
        raise NotForThisEncodingError(cls, model.encoding.name, f"{error.key}: {error.problem}") from error
    if extension.missing is not None and not tune:
        raise extension.refusal(extension.missing, hint=extension.hint_to_missing)
    # Checked like the settings, so that `search` compares 1.0 with 1.0 and not with the 1 of the YAML.
    extension.defaults = without_name(resolve_extend({"name": cls.name, **defaults}))
    extension.settings = resolved
    return extension


def default_knobs(name: str) -> dict[str, Any]:
    """Read the knobs of an extension from its YAML, the only place that has them."""
    path = choice_file("extend", name)
    if path is None:
        return {}
    return without_name(mapping_in(path, "extend", name))

"""What other tools and papers call the encodings of posenc, for the hint at an unknown name.

They are a table here, not attributes of the classes: a hint must not wait until torch and 39 modules are
imported.
"""

import re

from posenc.core.errors import SUGGESTS

OTHER_NAMES = {
    "alibi": ("linear_bias", "linear_biases"),
    "fox": ("forgetting", "forgetting_transformer", "forget_gate"),
    "learned": ("absolute", "learnable", "learned_absolute", "gpt2", "gpt_2", "bert"),
    "nope": ("none", "no", "nopos", "no_pe", "no_position"),
    "rope": ("rotary", "roformer", "rotary_embedding"),
    "shaw": ("relative_key", "relative_key_query", "rpr"),
    "sinusoidal": ("sin", "sine", "sincos", "sin_cos", "sinusoid", "vanilla"),
    "t5": ("relative_bias", "relative_position_bias", "t5_bias"),
    "transformer_xl": ("xl", "transformerxl", "transfo_xl"),
}

# Names that papers give a family of encodings (docs/names.md).
FAMILIES = {
    "ape": ("learned", "sinusoidal"),
    "rpe": ("t5", "shaw", "transformer_xl", "alibi"),
}


def named_elsewhere(name: str) -> str | None:
    """Return posenc's name of what others call `name`, such as rope for `rotary`; None if it is unknown."""
    folded = _folded(name)
    for name_in_posenc, other_names in OTHER_NAMES.items():
        if folded in other_names:
            return name_in_posenc
    return None


def hint_at_family(name: str) -> str | None:
    """Return which encodings a name such as RPE may mean, as a hint; None if it names no family."""
    family = FAMILIES.get(_folded(name))
    return None if family is None else f"{SUGGESTS} one of: {', '.join(family)}"


def _folded(name: str) -> str:
    """Return a name as it stands in the tables: papers write `Transformer-XL`, users `transformer xl`."""
    return re.sub(r"[\s-]", "_", name.casefold())

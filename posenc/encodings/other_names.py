"""What other tools and papers call the encodings of posenc, for the hint at an unknown name.

They are a table here, not attributes of the classes: a hint must not wait until torch and 39 modules are
imported.
"""

import re

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


def named_elsewhere(name: str) -> str | None:
    """Return posenc's name of what others call `name`, such as rope for `rotary`; None if it is unknown."""
    # Papers write `Transformer-XL` and users `transformer xl`: all mean one name.
    folded = re.sub(r"[\s-]", "_", name.casefold())
    for name_in_posenc, other_names in OTHER_NAMES.items():
        if folded in other_names:
            return name_in_posenc
    return None

"""What other tools and papers call the encodings of posenc, for the hint at an unknown name.

A table, since a hint must not wait until 39 modules and torch are imported.
"""

OTHER_NAMES = {
    "alibi": ("linear_bias", "linear_biases"),
    "fox": ("forgetting", "forgetting_transformer", "forget_gate"),
    "learned": ("absolute", "learnable", "learned_absolute", "gpt2"),
    "nope": ("none", "no", "nopos", "no_pe"),
    "rope": ("rotary", "roformer", "rotary_embedding"),
    "shaw": ("relative_key", "relative_key_query", "rpr"),
    "sinusoidal": ("sin", "sine", "sincos", "sinusoid", "vanilla"),
    "t5": ("relative_bias", "relative_position_bias", "t5_bias"),
    "transformer_xl": ("xl", "transformerxl", "transfo-xl"),
}


def named_elsewhere(name: str) -> str | None:
    """Return the encoding of posenc that other tools and papers call so: rope for `rotary`."""
    for own_name, others in OTHER_NAMES.items():
        if name.casefold() in others:
            return own_name
    return None

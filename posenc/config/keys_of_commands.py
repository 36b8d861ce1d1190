"""Name the settings that commands read which neither train nor measure. All others have no effect on them."""

from __future__ import annotations

# Groups of settings that a verdict of `posenc check` depends on.
KEYS_OF_CHECK = (
    *("encoding", "attention", "positions", "model", "context_length", "seed", "plugins", "experiment"),
)
KEYS_OF_DATA = (
    "data",
    "tokenizer",
    "context_length",
    "experiment",
    "plugins",
)  # `posenc data prepare`, `info`
KEYS_OF_WRITING = ("prompt", "tokens", "temperature", "seed")  # `posenc sample` of any model
KEYS_OF_SAMPLE = ("run", *KEYS_OF_WRITING, "plugins")  # of a run
# Of a model of transformers. They are settings of `posenc eval`.
GROUPS_OF_SAMPLED_SUBJECT = ("subject", "extend", "context_length", "data", "device")

"""Name the settings that commands read which neither train nor measure. All others have no effect on them."""

from __future__ import annotations

# Groups that a verdict of `posenc check` depends on.
KEYS_OF_CHECK = (
    "encoding",
    "attention",
    "positions",
    "model",
    "context_length",
    "seed",
    "plugins",
    "experiment",
)
# `posenc data prepare` and `info`
KEYS_OF_DATA = ("data", "tokenizer", "context_length", "experiment", "plugins")
# `posenc sample`: of any model, of a run, and of a model of transformers (settings of `posenc eval`)
KEYS_OF_WRITING = ("prompt", "tokens", "temperature", "seed")
KEYS_OF_SAMPLE = ("run", *KEYS_OF_WRITING, "plugins")
GROUPS_OF_SAMPLED_SUBJECT = ("subject", "extend", "context_length", "data", "device")

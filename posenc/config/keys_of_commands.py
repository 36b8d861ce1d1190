"""Name the settings of commands that read only some of them. Others are refused, and not offered at a TAB."""

from __future__ import annotations

from posenc.config.keys import group_of

# The groups that make a model at its initial values: `posenc check`, and `posenc show` without a run.
KEYS_OF_INITIAL_MODEL = (
    "encoding",
    "attention",
    "positions",
    "model",
    "context_length",
    "seed",
    "plugins",
    "experiment",
)
# `posenc show` of a trained run
KEYS_OF_SHOWN_RUN = ("run", "plugins", "extend")
# `posenc data prepare` and `info`
KEYS_OF_DATA = ("data", "tokenizer", "context_length", "experiment", "plugins")
# `posenc sample`: of any model, of a run, and of a model of transformers (settings of `posenc eval`)
KEYS_OF_WRITING = ("prompt", "tokens", "temperature", "seed")
KEYS_OF_SAMPLE = ("run", *KEYS_OF_WRITING, "plugins")
GROUPS_OF_SAMPLED_SUBJECT = ("subject", "extend", "context_length", "data", "device")
# `posenc.measure` of a model that is given as a function
KEYS_OF_GIVEN_MODEL = (
    "context_length",
    "tokenizer",
    "device",
    "seed",
    "name",
    "data",
    "eval",
    "experiment_name",
    "runs_dir",
)
# `posenc bench` reads all of a training but where a run is kept, what of it is reported, and how jobs of a
# sweep run at once. It times the model as trained, and of an evaluation it reads how windows are passed.
GROUPS_UNREAD_BY_BENCH = ("sweep", "tracking", "runs_dir", "name", "experiment_name", "extend")
EVAL_KEYS_OF_BENCH = ("eval.batch_tokens", "eval.target_fraction")


def is_read_by_bench(key: str) -> bool:
    """Tell whether `posenc bench` depends on a setting."""
    group = group_of(key)
    if group == "eval":
        # `eval=full` chooses a file, which may set one of the two.
        return key == "eval" or key in EVAL_KEYS_OF_BENCH
    return group not in GROUPS_UNREAD_BY_BENCH

"""Hints at flags that other programs have and posenc does not."""

import pytest

from posenc.config.foreign_flags import hint_at_flags

LINE = "settings are written KEY=VALUE: posenc train"
COUNTS_TOKENS = "did you mean: train.tokens=4e6, which counts tokens"


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("--lr 1e-3 --d-model=64", f"{LINE} train.lr=1e-3 model.d_model=64"),
        ("--tokens 1e6", f"{LINE} train.tokens=1e6"),
        ("--train.tokens 1e6", f"{LINE} train.tokens=1e6"),
        ("--context-length 128 seed=1", f"{LINE} context_length=128 seed=1"),
        ("--compile", f"{LINE} train.compile=true"),
        ("--model nano", f"{LINE} model=nano"),
        ("--shorter 4x", f"{LINE} eval.memory.shorter=4x"),
        # another quantity
        ("--epochs 3", f"{COUNTS_TOKENS} instead of epochs"),
        ("--max-steps=10", f"{COUNTS_TOKENS}: updates times train.batch_tokens"),
        ("--encoding rope --epochs 3", f"{COUNTS_TOKENS} instead of epochs\n{LINE} encoding=rope"),
        # no setting
        ("--quiet", "posenc train --help all says what each setting means"),
        ("--memory 16", "posenc train --help all says what each setting means"),
        ("--encoding.name rope", "posenc train --help all says what each setting means"),
        ("--quiet encoding=rope", f"{LINE} encoding=rope"),
    ],
)
def test_the_line_that_was_meant_is_shown(typed, hint):
    arguments = typed.split()
    unknown = [argument for argument in arguments if argument.startswith("--")]
    assert hint_at_flags("train", arguments, unknown) == hint

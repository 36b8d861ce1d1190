"""The laws of every encoding, each a function of a subject; for `posenc check` and the tests.

A law returns a Verdict or raises one; any other exception is a failure of the encoding.
"""

import traceback
from collections.abc import Callable
from pathlib import Path

import posenc.laws.dependence as depends
from posenc.core.errors import first_line
from posenc.laws.module import same
from posenc.laws.numbers import bf16, count, float32, gradient, seeds
from posenc.laws.subject import NotApplicableError, Subject, Verdict, ViolationError

__all__ = ["COMPARED", "LAWS", "Subject", "Verdict", "judge", "statement"]


# name -> law, which says in the first line of its docstring what is true of an encoding that passes
LAWS: dict[str, Callable[[Subject], Verdict]] = {
    # First: a table shared by the process must be found before other laws have filled it.
    "trace": depends.trace,
    "causal": depends.causal,
    "prefix": depends.prefix,
    "shift": depends.shift,
    "order": depends.order,
    "positions": depends.positions,
    "batch": depends.batch,
    "float32": float32,
    "bf16": bf16,
    "gradient": gradient,
    "count": count,
    "seeds": seeds,
    "load": depends.weights,
    "penalty": depends.penalty,
    "blocks": depends.blocks,
    "options": depends.options,
}

COMPARED = {"same": same}  # of a callable beside one of posenc's encodings


def statement(law: str) -> str:
    """Return what a law says, in one line."""
    return ((LAWS | COMPARED)[law].__doc__ or "").partition(".\n")[0].removesuffix(".")


def judge(name: str, subject: Subject, *, debug: bool = False) -> Verdict:
    """Return the verdict of a law by its name; an exception in the encoding is a failure unless `debug`."""
    try:
        return (LAWS | COMPARED)[name](subject)
    except ViolationError as broken:
        reason, figure = broken.args
        return Verdict("fail", figure, reason)
    except NotApplicableError as silent:
        return Verdict("n/a", "", str(silent))
    except Exception as error:  # an encoding may raise anything
        if debug:
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return Verdict("fail", "", f"{type(error).__name__}: {first_line(error)} ({place})")

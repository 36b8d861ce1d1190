"""The laws of every encoding, each a function of a subject; for `posenc check` and the tests.

A law returns a Verdict or raises one; any other exception is a failure of the encoding.
"""

import traceback
from collections.abc import Callable
from pathlib import Path

from posenc.core.errors import first_line
from posenc.laws import laws
from posenc.laws.subject import NotApplicableError, Subject, Verdict, ViolationError

__all__ = ["COMPARED", "LAWS", "Subject", "Verdict", "judge", "statement"]


# name -> law, which says in the first line of its docstring what is true of an encoding that passes
LAWS: dict[str, Callable[[Subject], Verdict]] = {
    # First: a table shared by the process must be found before other laws have filled it.
    "trace": laws.trace,
    "causal": laws.causal,
    "prefix": laws.prefix,
    "shift": laws.shift,
    "order": laws.order,
    "positions": laws.positions,
    "batch": laws.batch,
    "float32": laws.float32,
    "bf16": laws.bf16,
    "gradient": laws.gradient,
    "count": laws.count,
    "seeds": laws.seeds,
    "load": laws.weights,
    "penalty": laws.penalty,
    "blocks": laws.blocks,
    "options": laws.options,
}

COMPARED = {"same": laws.same}  # of a callable beside one of posenc's encodings


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

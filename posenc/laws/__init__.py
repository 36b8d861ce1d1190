"""The laws of every encoding, each a function of a subject; for `posenc check` and the tests.

A law returns a Verdict or raises one; any other exception is a failure of the encoding.
"""

import traceback
from collections.abc import Callable
from pathlib import Path

from posenc.core.errors import first_line
from posenc.laws import comparison, declarations, dependence, effect, parameters, precision
from posenc.laws.subject import Subject
from posenc.laws.tracebacks import files_of_encoding, frame_of_author
from posenc.laws.verdict import LawNotApplicableError, Verdict, ViolationError

__all__ = ["COMPARED", "LAWS", "Subject", "Verdict", "judge", "statement"]

Law = Callable[[Subject], Verdict]

# name -> law, which says in the first line of its docstring what is true of an encoding that passes
LAWS: dict[str, Law] = {
    # First: a table shared by the process must be found before other laws have filled it.
    "trace": dependence.trace,
    "causal": dependence.causal,
    "prefix": dependence.prefix,
    "shift": dependence.shift,
    "order": dependence.order,
    "positions": dependence.positions,
    "batch": dependence.batch,
    "float32": precision.float32,
    "bf16": precision.bf16,
    "gradient": parameters.gradient,
    "count": parameters.count,
    "seeds": parameters.seeds,
    "initial": parameters.initial,
    "effect": effect.effect,
    "load": parameters.load,
    "penalty": declarations.penalty,
    "blocks": dependence.blocks,
    "options": declarations.options,
}

# the law of a callable that is compared with an encoding of posenc
COMPARED: dict[str, Law] = {"same": comparison.same}


def statement(name: str) -> str:
    """Return what a law says, in one line."""
    law = (LAWS | COMPARED)[name]
    return (law.__doc__ or "").partition(".\n")[0].removesuffix(".")


def judge(name: str, subject: Subject, *, debug: bool = False) -> Verdict:
    """Return the verdict of a law by its name.

    An exception in the encoding is a failure of it; with `debug` it is raised.
    """
    law = (LAWS | COMPARED)[name]
    try:
        return law(subject)
    except ViolationError as violation:
        return Verdict("fail", violation.figure, violation.reason, violation.hint)
    except LawNotApplicableError as not_applicable:
        return Verdict("n/a", "", str(not_applicable))
    except Exception as error:  # an encoding may raise anything
        if debug:
            raise
        # The line in the encoding is what its author needs. The whole traceback would be one of posenc.
        frame = frame_of_author(traceback.extract_tb(error.__traceback__), files_of_encoding(subject))
        line = f"{Path(frame.filename).name}:{frame.lineno}"
        return Verdict("fail", "", f"{type(error).__name__}: {first_line(error)} ({line})")

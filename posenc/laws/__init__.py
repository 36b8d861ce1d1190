"""The laws of every encoding, each a function of a subject; for `posenc check` and the tests.

A law returns a Verdict or raises one; any other exception is a failure of the encoding.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import posenc.laws.dependence as depends
from posenc.core.errors import first_line
from posenc.laws.numbers import bf16, count, diverged, finite, float32, gradient, seeds
from posenc.laws.subject import NotApplicableError, Subject, Verdict, ViolationError

__all__ = ["LAWS", "Law", "Subject", "Verdict", "judge"]


@dataclass(frozen=True)
class Law:
    """A check, and in one line what is true of an encoding that passes."""

    check: Callable[[Subject], Verdict]
    statement: str


LAWS: dict[str, Law] = {
    # First: a table shared by the process must be found before other laws have filled it.
    "trace": Law(depends.trace, "no number depends on what this process computed before"),
    "causal": Law(depends.causal, "changed future tokens leave past logits bit-identical"),
    "prefix": Law(depends.prefix, "a longer text leaves the logits of its prefix alone, unless declared"),
    "shift": Law(depends.shift, "if relative: logits stay when all positions shift alike, to 65 536"),
    "order": Law(depends.order, "with two layers or more, the order of the past changes the last output"),
    "positions": Law(
        depends.positions, "positions are increasing whole numbers, and used if and only if declared"
    ),
    "batch": Law(
        depends.batch, "other texts in a batch leave a text's logits bit-identical, in training too"
    ),
    "repeat": Law(depends.repeat, "the same text has the same logits twice, whatever was drawn in between"),
    "finite": Law(finite, "finite and of the right type at 8T and at positions to 65 536, fp32 and bf16"),
    "diverged": Law(diverged, "weights that are nan give no finite logits, and nothing is raised for them"),
    "float32": Law(float32, "float32 is as good as float64 at positions to 65 536"),
    "bf16": Law(bf16, "bf16 and fp32 agree, alike at every length to 8T, and at positions to 65 536"),
    "gradient": Law(gradient, "a finite gradient reaches every parameter, in fp32 and bf16"),
    "count": Law(count, "the declared number of parameters is the real one"),
    "seeds": Law(seeds, "initial values follow from seed and name; shared parts start alike"),
    "load": Law(depends.weights, "weights alone make the model again, at T and at 8T"),
    "penalty": Law(depends.penalty, "if a penalty: its bias never rises with the distance"),
    "tail": Law(depends.tail, "the last tokens asked for alone equal the end of all"),
    "blocks": Law(depends.blocks, "the same numbers in small blocks of queries, at once, or fused"),
    "options": Law(
        depends.options, "per_layer, positions, window and scale combine with it or are refused by name"
    ),
}


def judge(name: str, subject: Subject, *, debug: bool = False) -> Verdict:
    """Return the verdict of a law by its name; an exception in the encoding is a failure unless `debug`."""
    try:
        return LAWS[name].check(subject)
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

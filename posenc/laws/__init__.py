"""The laws that every encoding is held to, each a function of a subject; for `posenc check` and the tests.

A law returns a Verdict or raises one; anything else that it raises is a failure of the encoding.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from posenc.laws.apart import batch, repeat
from posenc.laws.kernel import blocks, tail
from posenc.laws.lifetime import trace, weights
from posenc.laws.numbers import bf16, diverged, finite, float32
from posenc.laws.options import options
from posenc.laws.order import causal, order, prefix
from posenc.laws.place import penalty, positions, shift
from posenc.laws.subject import Build, Subject
from posenc.laws.training import count, gradient, seeds
from posenc.laws.verdict import NotApplicableError, Verdict, ViolationError

__all__ = ["LAWS", "Build", "Law", "Subject", "Verdict", "judge"]


@dataclass(frozen=True)
class Law:
    """`statement` is what holds of an encoding that passes, in one line."""

    check: Callable[[Subject], Verdict]
    statement: str


LAWS: dict[str, Law] = {
    # The first to run: a table that the process shares is seen before other laws have filled it.
    "trace": Law(trace, "what a model met before leaves no trace in its numbers"),
    "causal": Law(causal, "changed future tokens leave past logits bit-identical"),
    "prefix": Law(prefix, "a longer text leaves the logits of its prefix alone, unless declared"),
    "shift": Law(shift, "if relative: logits stay when all positions shift alike, to 65 536"),
    "order": Law(order, "with two layers or more, the order of the past changes the last output"),
    "positions": Law(positions, "positions are increasing whole numbers, and used if and only if declared"),
    "batch": Law(batch, "other texts in a batch leave a text's logits bit-identical, in training too"),
    "repeat": Law(repeat, "the same text has the same logits twice, whatever was drawn in between"),
    "finite": Law(finite, "finite and of the right type at 8T and at positions to 65 536, fp32 and bf16"),
    "diverged": Law(diverged, "weights that are nan give no finite logits, and nothing is raised for them"),
    "float32": Law(float32, "float32 is as good as float64 at positions to 65 536"),
    "bf16": Law(bf16, "bf16 and fp32 agree, alike at every length to 8T, and at positions to 65 536"),
    "gradient": Law(gradient, "a finite gradient reaches every parameter, in fp32 and bf16"),
    "count": Law(count, "the declared number of parameters is the real one"),
    "seeds": Law(seeds, "initial values follow from seed and name; shared parts start alike"),
    "load": Law(weights, "weights alone make the model again, at T and at 8T"),
    "penalty": Law(penalty, "if a penalty: its bias never rises with the distance"),
    "tail": Law(tail, "the last tokens asked for alone equal the end of all"),
    "blocks": Law(blocks, "the same numbers in small blocks of queries, at once, or fused"),
    "options": Law(options, "per_layer, positions, window and scale combine with it or are refused by name"),
}


def judge(name: str, subject: Subject, *, debug: bool = False) -> Verdict:
    """The verdict of a law by its name; an exception inside the encoding is a failure that names it.

    With `debug` such an exception comes through.
    """
    try:
        return LAWS[name].check(subject)
    except (ViolationError, NotApplicableError) as ended:
        return ended.verdict
    except Exception as error:  # the encoding's: whatever it raises
        if debug:
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = (str(error).strip().splitlines() or [""])[0]
        return Verdict(
            "fail", "", f"{type(error).__name__}: {text} ({Path(last.filename).name}:{last.lineno})"
        )

"""dyck: a sequence of brackets, then the brackets that close those that it leaves open.

    ([]{(|)}).

A closing bracket closes the last one that is open. At most `depth` brackets are open at once, so the answer
has at most `depth` of them, and at least one.

Source: Hewitt et al. 2020 (RNNs can generate bounded hierarchical languages with optimal memory), arXiv
2010.07515; Bhattamishra et al. 2020 (On the Ability and Limitations of Transformers to Recognize Formal
Languages), arXiv 2009.11264.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from posenc.data.tasks.base import END, Draws, Instance, Task
from posenc.settings.numbers import Whole

OPENING = "([{<"
CLOSING = dict(zip(OPENING, ")]}>", strict=True))
MARK = "|"  # before the answer; `>` is a bracket here


@dataclass(frozen=True, kw_only=True)
class Dyck(Task):
    """Ask for the brackets that close what is open."""

    name: ClassVar[str] = "dyck"
    about: ClassVar[str] = "brackets -> those that close what is open"
    source: ClassVar[str] = "arXiv 2009.11264, 2010.07515"

    kinds: Annotated[Whole, Ge(1), Le(len(OPENING))] = 2
    depth: Annotated[Whole, Ge(2), Le(64)] = 4  # most brackets that are open at once

    def tokens(self, size: int) -> int:
        return size + len(MARK) + self.depth + len(END)

    def instance(self, draws: Draws, size: int) -> Instance:
        unclosed: list[str] = []
        brackets = ""
        for index in range(size):
            is_last = index == size - 1
            # The last bracket must not close the only open one, since then there would be nothing to ask.
            must_open = not unclosed or (is_last and len(unclosed) == 1)
            must_close = len(unclosed) == self.depth and not must_open
            if must_open or (not must_close and draws.below(2)):
                bracket = draws.choice(OPENING[: self.kinds])
                unclosed.append(bracket)
            else:
                bracket = CLOSING[unclosed.pop()]
            brackets += bracket
        closing = [CLOSING[bracket] for bracket in reversed(unclosed)]
        return Instance((brackets + MARK, "".join(closing) + END))

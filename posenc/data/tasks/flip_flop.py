"""flip_flop: bits are written, ignored and read; a read gives the bit that was written last.

    w0i1i1r0w1i0r1    the answers are the bits after each r

The first instruction writes and the last one reads. Each of the others is i (ignore its bit) with probability
`ignored`, and otherwise w or r with equal probability.

Source: Liu et al. 2023 (Exposing Attention Glitches with Flip-Flop Language Modeling), arXiv 2306.00946, with
0.8 for `ignored`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Lt

from posenc.data.tasks.base import Draws, Instance, Task
from posenc.settings.numbers import Number

RESOLUTION = 1 << 20  # a probability is a share of the whole numbers below this one


@dataclass(frozen=True, kw_only=True)
class FlipFlop(Task):
    """Ask at every read for the bit of the last write."""

    name: ClassVar[str] = "flip_flop"
    about: ClassVar[str] = "writes, ignores and reads of a bit -> the bit at each read"
    source: ClassVar[str] = "arXiv 2306.00946"
    smallest: ClassVar[int] = 2

    ignored: Annotated[Number, Ge(0), Lt(1)] = 0.8  # probability

    def tokens(self, size: int) -> int:
        return 2 * size

    def instance(self, draws: Draws, size: int) -> Instance:
        memory = draws.choice("01")
        pieces = []
        instructions = "w" + memory
        for _ in range(size - 2):
            instruction = self.drawn_instruction(draws)
            if instruction == "r":
                pieces += [instructions + "r", memory]
                instructions = ""
                continue
            bit = draws.choice("01")
            if instruction == "w":
                memory = bit
            instructions += instruction + bit
        return Instance((*pieces, instructions + "r", memory))

    def drawn_instruction(self, draws: Draws) -> str:
        """Return i (ignore), w (write) or r (read)."""
        # Whole numbers are drawn, as everywhere in tasks, so a probability is compared with a share of them.
        if draws.below(RESOLUTION) < self.ignored * RESOLUTION:
            return "i"
        return draws.choice("wr")

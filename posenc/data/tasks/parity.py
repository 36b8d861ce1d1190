"""parity: bits, then whether the number of ones is odd.

    10110>1         without `scratchpad`: the parity of all bits alone
    10110>11011     with `scratchpad`: the parity of the first bit, of the first two, and so on

Source: Anil et al. 2022, arXiv 2207.04901; Ruoss et al. 2023, arXiv 2305.16843; with a scratchpad Zhou et al.
2023, arXiv 2310.16028.
"""

from dataclasses import dataclass
from typing import ClassVar

from posenc.data.tasks.base import SEPARATOR, Draws, Instance, Task
from posenc.settings.numbers import Flag


@dataclass(frozen=True, kw_only=True)
class Parity(Task):
    """Ask for the sum of bits, modulo 2."""

    name: ClassVar[str] = "parity"
    about: ClassVar[str] = "bits -> their parity, after each bit or at the end"
    source: ClassVar[str] = "arXiv 2207.04901, 2305.16843, 2310.16028"

    scratchpad: Flag = True  # false: only the parity of all bits is asked for

    def tokens(self, size: int) -> int:
        answer_tokens = size if self.scratchpad else 1
        return size + len(SEPARATOR) + answer_tokens

    def instance(self, draws: Draws, size: int) -> Instance:
        bits = draws.text("01", size)
        parity = 0
        parities = ""
        for bit in bits:
            parity ^= int(bit)
            parities += str(parity)
        answer = parities if self.scratchpad else parities[-1]
        return Instance((bits + SEPARATOR, answer))

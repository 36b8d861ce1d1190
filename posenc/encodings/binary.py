"""Binary positions: a learned row for each bit; the rows of the bits that are 1 in the position are added.

Formula: x_t + sum over m of b_m(t) E[m].
  b_m(t)  bit m of the position: floor(t / 2^m) mod 2
  E       a learned table (bits, d), one for each place where positions enter
Setting:
  bits  rows of the table; positions from 2^bits on are refused
With n positions in training, the bits from ceil(log2(n)) on are 0 there, and their rows stay untrained.
"""

import torch
from torch import Tensor, nn

from posenc.encodings.base import LONGEST_OF_LAWS, Shape
from posenc.encodings.shared.absolute import JOINED, PLACES, Absolute, Combine

LARGEST_BITS = 62  # so that 2^bits, the first position refused, still fits an int64


class Binary(Absolute):
    name = "binary"
    paper = "none (folklore)"
    formula = "x_t + sum_m b_m(t) E[m], b_m(t) the bits of t"
    past_training = "higher bits add rows that training never changed; refused from 2^bits on"
    learned = f"(bits*d + {JOINED})*{PLACES}"

    def __init__(self, shape: Shape, *, bits: int, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.trained_bits = (shape.positions - 1).bit_length()  # bits that training sets
        # Without a bit for each training position two of them would have one vector.
        smallest = max(1, self.trained_bits)
        if not smallest <= bits <= LARGEST_BITS:
            needed = f"{smallest} (for {shape.positions} training positions)"
            raise ValueError(f"bits={bits}: must be {needed} to {LARGEST_BITS}")
        self.bits = bits
        self.ends_at = 2**bits
        self.table = nn.Parameter(torch.empty(self.places, bits, shape.d_model))  # (places, bits, d)
        # The law of parameters without effect looks no farther than 8T, where such a row is never added.
        if bits > (LONGEST_OF_LAWS * shape.positions - 1).bit_length():
            self.inert = {"table": "rows of high bits are added only at positions far beyond training"}

    def learned_in_a_place(self) -> int:
        return self.bits * self.shape.d_model

    def warnings(self) -> list[str]:
        if self.trained_bits == self.bits:
            return []
        return [
            f"bits {self.trained_bits} to {self.bits - 1} are never set below position "
            f"{self.shape.positions}, where training ends: their rows keep their initial value"
        ]

    def rows(self, pos: Tensor, place: int) -> Tensor:
        last = int(pos[-1])  # positions increase
        if last >= 2**self.bits:
            raise ValueError(f"binary: bits={self.bits} end at position {2**self.bits - 1}, not at {last}")
        table = self.table[place]  # (bits, d_model)
        is_set = (pos[:, None] >> torch.arange(self.bits, device=pos.device)) & 1  # (T, bits)
        # autocast would round the rows to bf16
        with torch.autocast(pos.device.type, enabled=False):
            return is_set.to(table.dtype) @ table  # (T, d_model)

"""Hard-ALiBi: the first m heads see the last 1, 2, ..., m tokens, the others everything, without positions.

Formula: head h = 1..m attends to j > i - h alone (so to h tokens, its own among them); heads above m have the
causal mask and nothing else. The masked heads can tell which tokens stand just before this one, and the
others can look that up at any distance. So it should recall at every length, and serves as a control.
  masked_heads  m; null: half of the heads, as in the paper's 8 of 16
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape

EVERYTHING = 1 << 62  # tokens


class HardALiBi(Encoding):
    name = "hard_alibi"
    paper = "Jelassi, Brandfonbrener, Kakade, Malach 2024, arXiv 2402.01032"
    formula = "heads h = 1..m see j > i - h; the others see all keys, with no encoding"
    acts_on = "mask"
    past_training = "masked heads are the same at any length; the others spread over more keys"
    learned = "0"
    relative = True
    refuses: Mapping[str, str] = {
        "positions": "its windows count tokens, so drawn positions with gaps would empty them"
    }

    reach: Tensor

    def __init__(self, shape: Shape, *, masked_heads: int | None) -> None:
        super().__init__(shape)
        if masked_heads is None:
            masked_heads = shape.n_heads // 2
            self.derived["masked_heads"] = masked_heads
        if not 0 <= masked_heads <= shape.n_heads:
            raise ValueError(f"masked_heads={masked_heads}: must be from 0 to {shape.n_heads}, the heads")
        reach = torch.full((shape.n_heads,), EVERYTHING)  # (H,) tokens that a head sees
        reach[:masked_heads] = torch.arange(1, masked_heads + 1)
        self.register_buffer("reach", reach, persistent=False)

    def learned_parameters(self) -> int:
        return 0

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return q_pos[:, None] - k_pos < self.reach[:, None, None]  # (H, T, S)

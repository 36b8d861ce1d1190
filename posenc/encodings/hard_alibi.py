"""Hard-ALiBi: the first m heads see only the last 1, 2, ..., m tokens; the other heads have no encoding.

Formula: head h = 1..m attends only to keys j > i - h, which are h tokens with the query's own. The heads
above m have the causal mask and nothing else.
Setting:
  masked_heads  m; null: half of the heads, as the paper has 8 of 16
A masked head can tell which tokens come just before a token, and the other heads can look for the same tokens
at any distance. So a model with it should recall at every length. It is the control of the protocol `recall`:
if even this encoding does not recall, the task or the training is at fault.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape

# A whole number and no infinity, since it is compared with int64 distances.
UNLIMITED_REACH = 1 << 62  # tokens, more than any text has


class HardALiBi(Encoding):
    name = "hard_alibi"
    paper = "Jelassi, Brandfonbrener, Kakade, Malach 2024, arXiv 2402.01032"
    formula = "heads h = 1..m see j > i - h; the others see all keys, with no encoding"
    acts_on = "mask"
    past_training = "masked heads are the same at any length; the others spread over more keys"
    learned = "0"
    relative = True
    refuses: Mapping[str, str] = {
        "positions": "its windows are h positions wide: between drawn positions with gaps they would be empty"
    }

    reach: Tensor

    def __init__(self, shape: Shape, *, masked_heads: int | None) -> None:
        super().__init__(shape)
        if masked_heads is None:
            masked_heads = shape.n_heads // 2
            self.derived["masked_heads"] = masked_heads
        if not 0 <= masked_heads <= shape.n_heads:
            raise ValueError(f"masked_heads={masked_heads}: must be from 0 to {shape.n_heads}, the heads")
        self.masked_heads = masked_heads
        reach = torch.full((shape.n_heads,), UNLIMITED_REACH)  # (H,) how many positions a head sees
        # Head 1 sees its own token alone, as in the paper's formula.
        reach[:masked_heads] = torch.arange(1, masked_heads + 1)
        # It follows from the settings, so no checkpoint needs it.
        self.register_buffer("reach", reach, persistent=False)

    def warnings(self) -> list[str]:
        return [] if self.masked_heads else ["no head is masked, so this is nope"]

    def learned_parameters(self) -> int:
        return 0

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        # Keys of the future pass as well: the attention applies the causal mask.
        return q_pos[:, None] - k_pos < self.reach[:, None, None]  # (H, T, S)

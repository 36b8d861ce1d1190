"""A sum of encodings: all of them at once, such as a bias on top of rotated queries and keys.

Formula: the parts act one after another. Embeddings and scores are changed in the order of the parts, biases
are added, and masks are intersected.
Setting:
  parts  names of encodings: `encoding=sum encoding.parts=[alibi,rope]`. Parameters that differ from a part's
         YAML make it a mapping: `encoding.parts=[alibi,{name:rope,base:500000.0}]`.
Two parts are refused if both decide the product of queries and keys, by a rotation or otherwise, if both draw
positions, or if both replace the softmax or the values.
"""

from torch import nn

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.composed import Composed, refusals_of


class Sum(Composed):
    """Let encodings of the settings act together."""

    name = "sum"
    paper = "none: each part has its own"
    formula = "the parts' hooks one after another, their biases added"
    acts_on = "several"
    past_training = "as its parts do, together"

    def __init__(self, shape: Shape, *, parts: list[Encoding]) -> None:
        if not parts:
            raise ValueError("parts=[]: at least one encoding")
        super().__init__(shape, parts)
        self.members = nn.ModuleList(parts)  # registers their parameters
        self.refuses = refusals_of(parts)

"""A sum of encodings: all of them at once, such as a bias on top of rotated queries and keys.

Formula: embeddings in the order of the parts, biases added, masks intersected, score changes one after
another. `encoding=sum encoding.parts=[alibi,rope]`; a part with parameters of its own is a mapping,
`encoding.parts=[alibi,{name:rope,base:500000.0}]`, the others keep those of their YAML.
Parts that both rotate, both draw positions, or both replace the softmax or the values are refused.
"""

from torch import nn

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.composed import Composed


class Sum(Composed):
    """Several encodings acting together."""

    name = "sum"
    paper = "none: each part has its own"
    formula = "the parts' hooks one after another, their biases added"
    acts_on = "several"
    past_training = "as its parts do, together"

    def __init__(self, shape: Shape, *, parts: list[Encoding]) -> None:
        if not parts:
            raise ValueError("parts=[]: at least one encoding")
        super().__init__(shape, parts)
        self.members = nn.ModuleList(parts)
        self.refuses = {option: reason for part in parts for option, reason in part.refuses.items()}

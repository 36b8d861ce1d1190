"""The trained model without its encoding."""

from posenc.encodings.base import Encoding
from posenc.encodings.shared.absolute import Absolute
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.extensions.base import Extension, leaves


class Drop(Extension):
    """Remove the encoding at every window. Options of the attention (a window, a scale) stay.

    Of an absolute encoding its factor on the token embeddings stays, and the map of `combine: concat`.
    """

    name = "drop"
    paper = "Gelberg, Eguchi, Akiba, Cetin 2025 (DroPE), arXiv 2512.12167"
    formula = "the trained model without its encoding"
    applies = (
        "encodings that can be taken out alone: rotations, biases, laws of the scores, absolute vectors; not "
        "what stands for the softmax, nor what changes queries and keys at position 0 as well"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # The acting encoding is this one, followed by the options of the attention and of the positions.
        encodings = leaves(self.model.encoding)
        # `nope` would be measured as it is, under a name that promises another model.
        if not any(part.hooks for part in encodings):
            raise self.refusal("there is nothing to remove")
        self.remaining: list[Encoding] = []
        for part in encodings:
            self.remaining += self._remains_of(part)
        self.remaining += self.parts[len(encodings) :]  # the options

    def effective_encoding(self, window: int) -> Encoding:
        return self.compose(self.remaining)

    def _remains_of(self, part: Encoding) -> list[Encoding]:
        """Return what stays of a removed encoding. Refuses to remove more than positions."""
        name = part.name
        if "weights" in part.hooks:
            raise self.refusal(f"{name} stands in the place of the softmax, which would come back")
        if "rotate" in part.hooks and not isinstance(part, Rotary):
            raise self.refusal(f"{name} changes queries and keys at position 0 too, so more would go with it")
        if "embed" not in part.hooks:
            return []
        if not isinstance(part, Absolute):
            raise self.refusal(f"what {name} leaves of the embeddings without positions is not known")
        # The factor sqrt(d) of `sinusoidal` was trained with, so without it the embeddings would be too
        # small.
        return [part.without_rows()]

"""The base of all drawn positions, with the limit below which they are drawn."""

from posenc.encodings.base import Encoding, Shape

LARGEST_LIMIT = 2**24  # a draw permutes all positions below the limit, which takes 134 MB at this one


class DrawnPositions(Encoding):
    """Draw positions below a limit; a subclass says how."""

    acts_on = "positions"
    # The draw moves positions alone. Whether scores stay is up to the encoding beside it.
    relative = True
    times = 8  # the limit is this many times T unless it is set
    gaps = False  # whether neighbours may lie more than 1 apart

    def __init__(self, shape: Shape, *, max: int | None) -> None:
        super().__init__(shape)
        self.limit = self.limit_for(shape.train_length, max)
        if max is None:
            self.derived["max"] = self.limit
        if not shape.train_length <= self.limit <= LARGEST_LIMIT:
            allowed = f"from context_length={shape.train_length} to {LARGEST_LIMIT}"
            raise ValueError(f"positions.max={self.limit}: must be {allowed}")

    @classmethod
    def limit_for(cls, train_length: int, max: int | None) -> int:
        """Return the limit of the setting `max`, where None leaves it to the class."""
        return cls.times * train_length if max is None else max

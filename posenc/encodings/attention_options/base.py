"""The base of all options of the attention: its key, the value that chooses it, how it is built."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from posenc.encodings.base import Encoding, Shape


class AttentionOption(Encoding):
    """A small encoding that acts beside any other one: `attention.<key>=<choice>`.

    An encoding lists in `refuses` the options that make no sense with it, as `attention.<key>`.
    """

    key: ClassVar[str]
    choice: ClassVar[str | type]  # a name, such as logn; or the type of the value, such as int
    order: ClassVar[int] = 0  # options act in this order
    relative = True

    @classmethod
    def for_value(cls, shape: Shape, value: Any, acting: Sequence[Encoding]) -> Self:
        """Return the option that a value of the setting chooses, beside the encodings that act before it."""
        raise NotImplementedError

"""s5: elements of a group, then their product. Does the model track a state?

    ABAC>D       a character is an element; the answer is the product from the first to the last

`group=s5` has the 120 permutations of five things. It is the smallest symmetric group whose products are
NC1-complete: no transformer of constant depth is believed to compute them at every length. `group=mod_sum` is
a control that constant depth can compute: numbers modulo `modulus`, and their sum. Factors are drawn from the
first `elements` elements of the group, which are in s5 the neutral one and then the swaps of neighbours.

Source: Merrill et al. 2024 (The Illusion of State in State-Space Models), arXiv 2404.08819.
"""

import itertools
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from posenc.data.tasks.base import MANY_SYMBOLS, SEPARATOR, Draws, Instance, Task
from posenc.settings.numbers import Whole

Permutation = tuple[int, ...]
THINGS = 5


def unordered_pairs(permutation: Permutation) -> int:
    """Count the pairs in the wrong order: 0 in the neutral element, 1 in a swap of neighbours."""
    pairs = itertools.combinations(permutation, 2)
    return sum(first > second for first, second in pairs)


# The neutral element comes first, then the swaps of neighbours. An element's number is its index here.
PERMUTATIONS = sorted(itertools.permutations(range(THINGS)), key=lambda p: (unordered_pairs(p), p))


def product(first: Permutation, second: Permutation) -> Permutation:
    """Return the permutation that applies `first`, then `second`."""
    return tuple(second[image] for image in first)


@dataclass(frozen=True, kw_only=True)
class S5(Task):
    """Ask for the product of elements of a group."""

    name: ClassVar[str] = "s5"
    about: ClassVar[str] = "elements of a group -> their product"
    source: ClassVar[str] = "arXiv 2404.08819"
    smallest: ClassVar[int] = 2

    group: Literal["s5", "mod_sum"] = "s5"
    elements: Annotated[Whole, Ge(2), Le(len(PERMUTATIONS))] = 5  # at most so many are drawn from
    modulus: Annotated[Whole, Ge(2), Le(len(PERMUTATIONS))] = 5  # of mod_sum

    def __post_init__(self) -> None:
        if self.group == "s5" and self.modulus != S5.modulus:
            raise ValueError(f"modulus={self.modulus}: is for group=mod_sum")
        # The same instances would have two names. The default may be larger, for runs that set modulus alone.
        is_chosen = self.elements != S5.elements
        if self.group == "mod_sum" and is_chosen and self.elements > self.modulus:
            raise ValueError(f"elements={self.elements}: more than there are modulo modulus={self.modulus}")

    def tokens(self, size: int) -> int:
        return size + len(SEPARATOR) + 1

    def instance(self, draws: Draws, size: int) -> Instance:
        order = self.modulus if self.group == "mod_sum" else len(PERMUTATIONS)
        count = min(self.elements, order)
        factors = [draws.below(count) for _ in range(size)]
        symbols = "".join([MANY_SYMBOLS[factor] for factor in factors])
        return Instance((symbols + SEPARATOR, MANY_SYMBOLS[self.product_of(factors)]))

    def product_of(self, factors: list[int]) -> int:
        """Return the number of the product of the elements with these numbers."""
        if self.group == "mod_sum":
            return sum(factors) % self.modulus
        state = PERMUTATIONS[0]
        for factor in factors:
            state = product(state, PERMUTATIONS[factor])
        return PERMUTATIONS.index(state)

"""sort: letters, then the same letters in order; or the count of one letter; or the most frequent letter.

    dbad>abdd.    ask=sort
    dbad>d2.      ask=count: the letter after the mark is given; the answer says how often it occurs
    dbad>d        ask=mode: the most frequent letter; no other one is as frequent

Source: Zhou et al. 2023 (What Algorithms can Transformers Learn?), arXiv 2310.16028. Its `count` counts
upwards from one number to another; here the letters of a multiset are counted.
"""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Literal

from posenc.data.tasks.base import END, LETTERS, SEPARATOR, Draws, Instance, LetterCount, Task


@dataclass(frozen=True, kw_only=True)
class Sort(Task):
    """Ask for the letters in order, for the count of one of them, or for the most frequent one."""

    name: ClassVar[str] = "sort"
    about: ClassVar[str] = "letters -> in order; or the count of one; or the most frequent"
    source: ClassVar[str] = "arXiv 2310.16028"

    ask: Literal["sort", "count", "mode"] = "sort"
    letters: LetterCount = 8

    def tokens(self, size: int) -> int:
        longest_count = str(size)
        tokens_after_mark = {"sort": size + len(END), "count": len("x" + longest_count + END), "mode": 1}
        return size + len(SEPARATOR) + tokens_after_mark[self.ask]

    def instance(self, draws: Draws, size: int) -> Instance:
        letters = LETTERS[: self.letters]
        string = draws.text(letters, size)
        if self.ask == "sort":
            return Instance((string + SEPARATOR, "".join(sorted(string)) + END))
        if self.ask == "count":
            letter = draws.choice(letters)
            return Instance((string + SEPARATOR + letter, f"{string.count(letter)}{END}"))
        while True:
            (letter, count), *runners_up = Counter(string).most_common(2)
            # Of two letters with one count either would be a right answer.
            is_ahead = not runners_up or count > runners_up[0][1]
            if is_ahead:
                return Instance((string + SEPARATOR, letter))
            # A tie: one of the two letters is written over drawn positions until it is ahead.
            index = draws.below(size)
            string = string[:index] + letter + string[index + 1 :]

"""Memory of a row: how far its next-token distributions move when text farther back comes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

from annotated_types import MinLen
from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.results.beside.base import NumbersBeside, TableBeside, by_window
from posenc.results.checks import check_aligned
from posenc.results.measurements import Measurement, Member
from posenc.results.records import JsonInterval
from posenc.results.statistics.documents import Number, Positive
from posenc.results.statistics.intervals import Interval, mean_and_spread

# --- in a record


class MemoryByWindow(TypedDict):
    """How next-token distributions in a window differ from those in shorter ones: lists of means."""

    window: Annotated[list[Positive], MinLen(1)]  # tokens of the shorter windows, ascending
    variation: list[Number]  # total variation of the two distributions, from 0 to 1
    variation_ci95: list[JsonInterval | None]  # over documents
    gained: list[Number]  # rise of the right token's probability, 0 where it falls
    lost: list[Number]  # fall of the right token's probability, 0 where it rises


def _check(memory: MemoryByWindow) -> MemoryByWindow:
    """Return the memory if its lists are equally long. Raises ValueError."""
    check_aligned(
        memory["window"], memory["variation"], memory["variation_ci95"], memory["gained"], memory["lost"]
    )
    return memory


RECORD = Annotated[MemoryByWindow, AfterValidator(_check)]


# --- in a row


@dataclass(frozen=True, kw_only=True)
class ShorterWindow:
    """How distributions in a window differ from those in a shorter one, mean over targets and seeds."""

    multiple: float  # of T: the shorter window
    window: int  # tokens
    variation: float  # total variation of the two distributions, from 0 to 1
    spread: float | None  # standard deviation over seeds; null for one seed
    ci95: Interval | None  # over documents; null for several seeds
    gained: float  # rise of the right token's probability, 0 where it falls
    lost: float  # fall of the right token's probability, 0 where it rises


@dataclass(frozen=True)
class MemoryCell:
    """The distributions in windows of one length against those in all shorter windows."""

    multiple: float  # of T
    window: int  # tokens
    seeds: int
    shorter: tuple[ShorterWindow, ...]  # ascending

    @property
    def farther_back(self) -> ShorterWindow:
        """Return what tables show: past T the comparison with T, else that with the next shorter window."""
        # Past T the question is what text beyond the training length does, so that every longer window is
        # held against T. Up to T there is no such window, and the step from the next shorter one is the
        # smallest that was measured.
        return next((shorter for shorter in self.shorter if shorter.multiple == 1), self.shorter[-1])


@dataclass(frozen=True)
class RowMemory:
    """The memory of a row by window."""

    cells: tuple[MemoryCell, ...]  # by ascending window

    @property
    def longest(self) -> MemoryCell:
        """Return the cell of the longest window."""
        return self.cells[-1]

    def cell_at(self, multiple: float) -> MemoryCell | None:
        """Return the cell of a window, given as a multiple of T."""
        return next((cell for cell in self.cells if cell.multiple == multiple), None)


def _rows_of(table: TableBeside) -> list[RowMemory | None]:
    return [memory_of_row(members) for members in table.rows]


MEMORY: NumbersBeside[MemoryByWindow, RowMemory, None] = NumbersBeside(
    protocol="memory", rows_of=_rows_of, order=60
)


def memory_of_row(members: Sequence[Member]) -> RowMemory | None:
    """Return the memory of a row, given as its members of the protocol; None without a number."""
    cells = tuple(_cell_of(measured) for measured in by_window(members, MEMORY))
    return RowMemory(cells) if cells else None


def _cell_of(measured: Sequence[Measurement]) -> MemoryCell:
    """Return the mean over seeds; `measured` are the seeds' measurements of one window.

    Seeds that were compared with other windows than the first are left out.
    """
    first = measured[0]
    memories = [memory for memory in map(MEMORY.measured, measured) if memory is not None]
    windows = memories[0]["window"]
    # An index stands for another window in their lists, and a mean over both would be of neither.
    alike = [memory for memory in memories if memory["window"] == windows]
    shorter = [_shorter_window(alike, index, first.train_length) for index in range(len(windows))]
    return MemoryCell(multiple=first.multiple, window=first.window, seeds=len(alike), shorter=tuple(shorter))


def _shorter_window(memories: Sequence[MemoryByWindow], index: int, train_length: int) -> ShorterWindow:
    """Return the shorter window at an index of every seed's lists."""
    window = memories[0]["window"][index]
    variation, spread = mean_and_spread([memory["variation"][index] for memory in memories])
    # An interval over documents says nothing of other seeds: several seeds have their spread instead.
    interval = memories[0]["variation_ci95"][index] if len(memories) == 1 else None
    return ShorterWindow(
        multiple=window / train_length,
        window=window,
        variation=variation,
        spread=spread,
        ci95=None if interval is None else (interval[0], interval[1]),
        gained=fmean(memory["gained"][index] for memory in memories),
        lost=fmean(memory["lost"][index] for memory in memories),
    )

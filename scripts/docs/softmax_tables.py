"""Tables of docs/softmax.md: encodings under softmax and under what replaces or gates it.

The records are those of docs/records/study-softmax. An *option* is softmax itself, another normaliser or a
gate. Seeds are compared in pairs: a model with an option and one without have the same seed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markdown_table import MarkdownTable
from posenc_output import RECORDS, Json, cell_at, compare, last_cell
from record_tables import change_and_verdict
from scipy import stats

from posenc.results.statistics.verdicts import SAME_MARGIN

ENCODINGS = ("rope", "nope", "alibi", "fox")
# the settings in the label of a row -> the name of the option on the page, in the order of the columns
OPTIONS = {
    "": "softmax",
    "normalizer=sink": "sink",
    "normalizer=asentmax": "asentmax",
    "gate=head": "gate",
}
SEEDS = (0, 1, 2)
SAME_NATS = SAME_MARGIN * math.log(2)  # the margin is in bits


@dataclass(frozen=True)
class OptionRow:
    """A row of the comparison: an encoding under one option."""

    encoding: str
    option: str
    row: Json

    @property
    def loss_at_t(self) -> float:
        """Return the loss at T in nats."""
        cell = cell_at(self.row, 1)
        assert cell is not None
        loss: float = cell["mean"]
        return loss

    @property
    def harm(self) -> float:
        """Return the change of the loss at 8T in nats."""
        change: float = last_cell(self.row)["change"]
        return change

    @property
    def found_at_last(self) -> float | None:
        """Return the share of values found at 8T by the seeds that learned; None if no seed did."""
        recall = self.row["recall"]
        if recall is None or not recall["learned"]:
            return None
        share: float = recall["beyond"][-1]["accuracy"]
        return share

    @property
    def at_t(self) -> Json | None:
        """Return what attention does at T; None if that was not measured."""
        return self._attention(0)

    @property
    def at_8t(self) -> Json | None:
        """Return what attention does at 8T; None if that was not measured."""
        return self._attention(-1)

    def _attention(self, index: int) -> Json | None:
        dispersion = self.row["dispersion"]
        if dispersion is None:
            return None
        cell: Json = dispersion["cells"][index]
        return cell

    @property
    def entropy_rise(self) -> float | None:
        """Return the rise of the entropy from T to 8T as a share of log 8, the rise of equal weights."""
        if self.at_t is None or self.at_8t is None:
            return None
        rise = statistics.fmean(self.at_8t["entropy"]) - statistics.fmean(self.at_t["entropy"])
        return rise / math.log(self.at_8t["window"] / self.at_t["window"])

    @property
    def first_at_t(self) -> float | None:
        """Return the weight on the first token at T, mean over layers."""
        return None if self.at_t is None else statistics.fmean(self.at_t["first"])

    @property
    def variance_ratio(self) -> float | None:
        """Return the variance of the output at 8T over that at T, geometric mean over layers."""
        if self.at_t is None or self.at_8t is None:
            return None
        pairs = zip(self.at_t["variance"], self.at_8t["variance"], strict=True)
        return statistics.geometric_mean([far / near for near, far in pairs])

    @property
    def far_share(self) -> float | None:
        """Return the change by far positions alone as a share of the harm; None if there is no harm."""
        if self.at_t is None or self.at_8t is None or self.at_8t["far_nats"] is None:
            return None
        change = self.at_8t["nats"] - self.at_t["nats"]
        if change <= SAME_NATS:
            return None
        share: float = (self.at_8t["far_nats"] - self.at_t["nats"]) / change
        return share


def option_rows(folder: str, where: Sequence[str] = ()) -> dict[tuple[str, str], OptionRow]:
    """Return the rows of a folder by encoding and option, in the order of the page."""
    rows = {}
    for row in compare([folder], where=where)["rows"]:
        encoding, _, settings = row["label"].partition(" ")
        rows[encoding, OPTIONS[settings]] = OptionRow(encoding, OPTIONS[settings], row)
    ordered = {}
    for encoding in ENCODINGS:
        for option in OPTIONS.values():
            if (encoding, option) in rows:
                ordered[encoding, option] = rows[encoding, option]
    return ordered


def harm_by_option(folder: str) -> str:
    """Return the change at 8T with its verdict, a row for each encoding and a column for each option."""
    table = _by_option(folder, lambda row: change_and_verdict(last_cell(row.row)))
    return table.text()


def loss_by_option(folder: str) -> str:
    """Return the loss at T, a row for each encoding and a column for each option."""
    return _by_option(folder, _loss_text).text()


def _loss_text(row: OptionRow) -> str:
    cell = cell_at(row.row, 1)
    assert cell is not None
    spread = cell["spread"]
    return f"{row.loss_at_t:.3f}" if spread is None else f"{row.loss_at_t:.3f}±{spread:.3f}"


def found_by_option(folder: str) -> str:
    """Return the seeds that learned and what they find at 8T, by encoding and option."""
    return _by_option(folder, _found_text).text()


def _found_text(row: OptionRow) -> str:
    learning = row.row["recall"]["learning"]
    learned = f"{learning['learned']} of {learning['seeds']}"
    if not row.row["recall"]["learned"]:
        return learned
    farthest = row.row["recall"]["beyond"][-1]
    low, high = (100 * share for share in farthest["ci95"])
    return f"{learned}: {100 * farthest['accuracy']:.0f}% [{low:.0f}, {high:.0f}]"


def _by_option(folder: str, text_of: Callable[[OptionRow], str]) -> MarkdownTable:
    """Return a table of encodings by options; a cell that has fewer seeds than planned says how many."""
    rows = option_rows(folder)
    table = MarkdownTable(["encoding", *OPTIONS.values()])
    for encoding in ENCODINGS:
        cells = []
        for option in OPTIONS.values():
            row = rows.get((encoding, option))
            if row is None:
                cells.append("not run yet")
                continue
            seeds = len(row.row["seeds"])
            text = text_of(row)
            cells.append(text if seeds == len(SEEDS) else f"{text} ({_seeds_text(seeds)})")
        table.add(f"`{encoding}`", *cells)
    return table


def _seeds_text(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def attention_by_option(folder: str) -> str:
    """Return what attention does at T and at 8T, a row for each encoding and option."""
    heads = ["encoding", "option", "entropy", "rise, of log 8", "first token, %", "variance", "far, of harm"]
    table = MarkdownTable(heads, left=[0, 1])
    for row in option_rows(folder).values():
        at_t = row.at_t
        at_8t = row.at_8t
        if at_t is None or at_8t is None:
            continue
        far_share = row.far_share
        variance_ratio = row.variance_ratio
        entropy_rise = row.entropy_rise
        assert variance_ratio is not None and entropy_rise is not None
        table.add(
            f"`{row.encoding}`",
            row.option,
            f"{statistics.fmean(at_t['entropy']):.2f} to {statistics.fmean(at_8t['entropy']):.2f}",
            f"{100 * entropy_rise:.0f}%",
            f"{100 * statistics.fmean(at_t['first']):.1f} to {100 * statistics.fmean(at_8t['first']):.1f}",
            f"x{variance_ratio:.2f}",
            "-" if far_share is None else f"{100 * far_share:z.0f}%",
        )
    table.sentence = (
        "Means over layers, heads and seeds, from T to 8T. Equal weights: entropy 4.16 to 6.24, first token "
        "1.6 to 0.2%."
    )
    return table.text()


# --- against softmax, seed by seed


@dataclass(frozen=True)
class Direction:
    """What a paper says that an option does."""

    claim: str
    option: str
    value: Callable[[OptionRow], float | None]
    sign: int  # 1: more than softmax, -1: less
    text: Callable[[float], str]  # of a difference from softmax


def _nats_text(difference: float) -> str:
    return f"{difference:+z.3f}"


def _points_text(difference: float) -> str:
    return f"{100 * difference:+z.0f} points"


def _small_points_text(difference: float) -> str:
    return f"{100 * difference:+z.2f} points"


def _harm(row: OptionRow) -> float | None:
    return row.harm


def _loss_at_t(row: OptionRow) -> float | None:
    return row.loss_at_t


def _first_at_t(row: OptionRow) -> float | None:
    return row.first_at_t


def _entropy_rise(row: OptionRow) -> float | None:
    return row.entropy_rise


def _found(row: OptionRow) -> float | None:
    return row.found_at_last


GATED = "[2505.06708](https://arxiv.org/abs/2505.06708)"
ASENTMAX = "[2506.16640](https://arxiv.org/abs/2506.16640)"
SINKS = "[2309.17453](https://arxiv.org/abs/2309.17453)"
DIRECTIONS = (
    Direction(f"sink: less weight on the first token ({SINKS})", "sink", _first_at_t, -1, _small_points_text),
    Direction("sink: less harm (expected here)", "sink", _harm, -1, _nats_text),
    Direction(f"gate: lower loss at T ({GATED})", "gate", _loss_at_t, -1, _nats_text),
    Direction(f"gate: less weight on the first token ({GATED})", "gate", _first_at_t, -1, _small_points_text),
    Direction(f"gate: less harm ({GATED})", "gate", _harm, -1, _nats_text),
    Direction(f"asentmax: less harm ({ASENTMAX})", "asentmax", _harm, -1, _nats_text),
    Direction(f"asentmax: finds more at 8T ({ASENTMAX})", "asentmax", _found, 1, _points_text),
    Direction(f"asentmax: entropy rises less ({ASENTMAX})", "asentmax", _entropy_rise, -1, _points_text),
)


def directions_met(folder: str) -> str:
    """Return for each direction of a paper and each encoding whether all seeds move that way, and how far.

    *met*: every seed does; *reversed*: every seed moves the other way; *not shown*: neither.
    """
    by_seed = [option_rows(folder, [f"seed={seed}"]) for seed in SEEDS]
    table = MarkdownTable(["against softmax", *(f"`{encoding}`" for encoding in ENCODINGS)], left=[0])
    for direction in DIRECTIONS:
        cells = [
            _direction_text(direction, differences_of(by_seed, encoding, direction.option, direction.value))
            for encoding in ENCODINGS
        ]
        table.add(direction.claim, *cells)
    table.sentence = "Mean difference from softmax over seeds. Losses in nats/byte."
    return table.text()


def _direction_text(direction: Direction, differences: Sequence[float]) -> str:
    if not differences:
        return "-"
    mean = direction.text(statistics.fmean(differences))
    along = [direction.sign * difference > 0 for difference in differences]
    if all(along):
        word = "met"
    elif not any(along):
        word = "reversed"
    else:
        word = "not shown"
    if len(differences) < len(SEEDS):
        return f"{mean} ({_seeds_text(len(differences))})"
    return f"{mean} {word}"


def differences_of(
    by_seed: Sequence[dict[tuple[str, str], OptionRow]],
    encoding: str,
    option: str,
    value: Callable[[OptionRow], float | None],
) -> list[float]:
    """Return a value with an option minus the value with softmax, for each seed that has both."""
    differences = []
    for rows in by_seed:
        with_option = rows.get((encoding, option))
        with_softmax = rows.get((encoding, "softmax"))
        if with_option is None or with_softmax is None:
            continue
        value_with_option = value(with_option)
        value_with_softmax = value(with_softmax)
        if value_with_option is not None and value_with_softmax is not None:
            differences.append(value_with_option - value_with_softmax)
    return differences


def harm_against_softmax(folder: str) -> str:
    """Return how much less or more harm each option does than softmax, with its interval over seeds.

    *less* or *more*: the whole 95% interval lies beyond 0.014 nats on that side.
    """
    by_seed = [option_rows(folder, [f"seed={seed}"]) for seed in SEEDS]
    options = [option for option in OPTIONS.values() if option != "softmax"]
    table = MarkdownTable(["harm minus that of softmax", *options])
    for encoding in ENCODINGS:
        cells = [_harm_text(differences_of(by_seed, encoding, option, _harm)) for option in options]
        table.add(f"`{encoding}`", *cells)
    table.sentence = "Nats/byte; 95% intervals over seeds."
    return table.text()


def _harm_text(differences: Sequence[float]) -> str:
    if not differences:
        return "-"
    mean = statistics.fmean(differences)
    if len(differences) < len(SEEDS):
        return f"{mean:+z.3f} ({_seeds_text(len(differences))})"
    low, high = seeds_interval(differences)
    if high < -SAME_NATS:
        word = "less"
    elif low > SAME_NATS:
        word = "more"
    elif low > -SAME_NATS and high < SAME_NATS:
        word = "same"
    else:
        word = "not shown"
    return f"{mean:+z.3f} [{low:+z.3f}, {high:+z.3f}] {word}"


def seeds_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the mean by Student's t over seeds."""
    mean = statistics.fmean(values)
    standard_error = statistics.stdev(values) / math.sqrt(len(values))
    half_width = float(stats.t.ppf(0.975, len(values) - 1)) * standard_error
    return mean - half_width, mean + half_width


# --- how often the reasons are right


def reasons_by_case(file: str) -> str:
    """Return what `why` says of models that were broken on purpose, a row for each alteration.

    Models that collapse as trained have a cause of their own. They count only where the alteration takes the
    additional keys away, too. Only models that collapse get a sentence.
    """
    cases = json.loads((RECORDS / file).read_text())
    keeping = {case["run"] for case in cases if not case["cause"] and not case["has_collapsed"]}
    counted = [case for case in cases if case["cause"] == "positions" or case["run"] in keeping]
    heads = [
        "altered past T",
        "cause",
        "models",
        "collapse",
        "it alone is named",
        "with others",
        "others",
        "none",
    ]
    table = MarkdownTable(heads, left=[0, 1])
    for altered in dict.fromkeys(case["altered"] for case in counted if case["cause"]):
        of_altered = [case for case in counted if case["altered"] == altered]
        cause = of_altered[0]["cause"]
        collapsed = [case for case in of_altered if case["has_collapsed"]]
        answers = [_answer(case["reasons"], cause) for case in collapsed]
        table.add(
            altered,
            "none of the three" if cause == "none" else cause,
            str(len(of_altered)),
            str(len(collapsed)),
            *(str(answers.count(answer)) for answer in ("alone", "with others", "others", "none")),
        )
    table.sentence = "Counts of models. *Others*: only other reasons are named; *none*: no reason is."
    return table.text()


def _answer(reasons: Sequence[str], cause: str) -> str:
    """Tell how the reasons of a case relate to its cause."""
    if not reasons:
        return "none"
    if cause not in reasons:
        return "others"
    return "alone" if len(reasons) == 1 else "with others"


def numbers_by_case(file: str) -> str:
    """Return the numbers that the criteria read: of each model as trained, and under each alteration."""
    cases = json.loads((RECORDS / file).read_text())
    heads = ["model", "altered past T", "change", "far, of the change", "rise, of log 8", "variance", "why"]
    table = MarkdownTable(heads, left=[0, 1, 6])
    for case in cases:
        far_share = case["far_share"]
        why = ", ".join(case["reasons"]) or "none"
        table.add(
            f"`{case['encoding']}`",
            case["altered"],
            f"{case['change']:+z.2f}",
            "-" if far_share is None else f"{100 * far_share:z.0f}%",
            f"{100 * case['entropy_rise']:z.0f}%",
            f"x{case['variance_ratio']:.2f}",
            why if case["has_collapsed"] else "-",
        )
    table.sentence = (
        "Changes of the loss at 8T in nats/byte. A dash: it does not collapse, so nothing is said."
    )
    return table.text()

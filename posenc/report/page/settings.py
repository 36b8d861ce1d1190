"""What the rows were made with: where they differ, every setting, the runs, the machines' software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.report.page.markup import Html, el, join, lines
from posenc.report.page.tables import Line, plain, table
from posenc.report.words import millions
from posenc.results.load import Run
from posenc.results.schema import HUGE
from posenc.results.settings import as_text, differing, flatten

UNSET = "–"
OF_A_RUN = {"seed", "name"}  # differ between the seeds of a row
FACTS = {"precision": "precision", "device": "device"}


@dataclass
class Made:
    """A row and its runs."""

    name: Html
    runs: list[Run]

    @property
    def settings(self) -> dict[str, str]:
        """Flat; where the runs differ in a key, all values."""
        each = [settings_of(run) for run in self.runs]
        keys = sorted({key for one in each for key in one})
        return {key: ", ".join(sorted({one.get(key, UNSET) for one in each})) for key in keys}


def settings_of(run: Run) -> dict[str, str]:
    """The resolved configuration, flat; of a run without one, what its results say."""
    facts = {
        key: value
        for key, value in (run.facts or {}).items()
        if key in ("encoding", "context_length", "seed")
    }
    return flatten(run.config if run.config is not None else facts)


def differences(rows: Sequence[Made]) -> Html:
    """A table of the settings in which the rows differ; what only one of them has stands together."""
    each = [{k: v for k, v in row.settings.items() if k not in OF_A_RUN} for row in rows]
    keys = differing(each)
    shared = [key for key in keys if sum(key in one for one in each) > 1 and key != "encoding.name"]
    if not keys or len(rows) < 2:
        return el("p", "The rows do not differ in any setting but the seed.")
    own = any(key in one for one in each for key in keys if key not in shared and key != "encoding.name")
    found = []
    for row, one in zip(rows, each, strict=True):
        cells = [plain(one.get(key, UNSET)) for key in shared]
        mine = [key for key in keys if key in one and key not in shared and key != "encoding.name"]
        texts = [el("code", f"{key} = {one[key]}") for key in mine]
        found.append(Line(row.name, [*([el("td", join(texts, " "), class_="list")] if own else []), *cells]))
    heads = ["encoding", *(["settings of its own"] if own else []), *shared]
    return table("Settings in which the rows differ", heads, found)


def full(rows: Sequence[Made]) -> Html:
    """All settings of each row, folded: what its runs share, then what each has for itself."""
    found = []
    for row in rows:
        each = [settings_of(run) for run in row.runs]
        apart = set(differing(each))
        shared = lines(f"{key} = {value}" for key, value in sorted(each[0].items()) if key not in apart)
        parts = [el("pre", shared)] if shared else [el("p", "No configuration is known.")]
        for run, one in zip(row.runs, each, strict=True) if apart else ():
            own = ", ".join(f"{key} = {one.get(key, UNSET)}" for key in sorted(apart))
            parts.append(el("p", el("b", run.name), ": ", own))
        count = f" ({len(row.runs)} run{'s' if len(row.runs) != 1 else ''})"
        found.append(el("details", el("summary", row.name, count), *parts))
    return join(found)


def runs_table(runs: Sequence[Run]) -> Html:
    """A line for each run: state, seed, speed, what it ended with, why it did not finish."""
    heads = ["run", "status", "seed", "T", "tokens", "tokens/s", "time", "peak memory", "training loss"]
    problems = any(run.reason for run in runs)
    found = []
    for run in runs:
        facts = run.facts or {}
        values = [facts.get(key) for key in ("context_length", "tokens", "tokens_per_second", "wall_seconds")]
        values += [facts.get("peak_memory_bytes"), facts.get("final_loss")]
        forms = (as_text, millions, "{:,.0f}".format, "{:,.0f} s".format, _mebibytes, "{:.3f}".format)
        cells = [plain(run.state), _number(run.seed, as_text)]
        cells += [_number(value, form) for value, form in zip(values, forms, strict=True)]
        cells += [el("td", run.reason or "", class_="list")] if problems else []
        found.append(Line(join([run.name]), cells, [run.state]))
    return table("Runs", [*heads, *(["why"] if problems else [])], found)


def unfinished(runs: Sequence[Run]) -> Html | None:
    """Runs that did not finish, each with its reason; None where all did."""
    found = [run for run in runs if run.state != "finished"]
    if not found:
        return None
    items = [
        el("li", el("b", run.name), f": {run.state}", *([", ", run.reason] if run.reason else []))
        for run in found
    ]
    return el("ul", *items)


def environment(runs: Sequence[Run]) -> Html:
    """Versions, device, precision and commit; where runs differ, how many have which."""
    values: dict[str, list[str]] = {}
    for run in runs:
        versions = (run.facts or {}).get("versions") or run.status.get("versions")
        pairs = [*(versions.items() if isinstance(versions, dict) else ())]
        pairs += [(name, (run.facts or {}).get(key)) for key, name in FACTS.items()]
        pairs += [("commit of posenc", run.status.get("git_commit"))]
        for key, value in pairs:
            if value is not None:
                values.setdefault(str(key), []).append(as_text(value))
    if not values:
        return el("p", "Nothing is known of what the runs were made with.")
    found = [join([el("dt", key), el("dd", _counted(some))]) for key, some in values.items()]
    return el("dl", *found, class_="facts")


def made(rows: Iterable[tuple[Html, Sequence[str]]], runs: Mapping[str, Run]) -> list[Made]:
    """Rows with their runs; a row all of whose runs stand in one before is left out."""
    seen: set[str] = set()
    found = []
    for name, paths in rows:
        if not set(paths) <= seen:
            found.append(Made(name, [runs[path] for path in paths if path in runs]))
        seen |= set(paths)
    return [row for row in found if row.runs]


def _counted(values: Sequence[str]) -> str:
    count = Counter(values)
    if len(count) == 1:
        return values[0]
    return ", ".join(f"{value} ({number} runs)" for value, number in sorted(count.items()))


def _number(value: object, form: Callable[[Any], str]) -> Html:
    if not isinstance(value, int | float):
        return plain("-")
    return plain(form(value) if abs(value) < HUGE else as_text(value), value)


def _mebibytes(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"

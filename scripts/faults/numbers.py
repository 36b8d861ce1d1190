"""Losses, gradients and weights that are not finite, and memory that runs out, at every place they may."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.case import Case, Family, Seen
from faults.commands import STEPS, TINY, Ended, posenc, write_corpus
from faults.warm import Warm

T = 16
LENGTHS = "eval.lengths=[1x,2x,4x,8x]"
PROTOCOLS = "eval.protocols=[fixed-target,sliding,nonoverlapping,positions]"
WORDS = re.compile(r"(?<![A-Za-z])(nan|inf|infinity)(?![A-Za-z])", re.IGNORECASE)


@dataclass(frozen=True)
class Here:
    """A folder, and the process that commands in it are forked from."""

    place: Path
    warm: Warm

    def posenc(self, *words: str) -> Ended:
        return self.warm.run(self.place, words)


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Training that breaks, evaluations that break, and real limits of memory."""
    write_corpus(place / "texts")
    plugin = Path(__file__).with_name("numbers_plugin.py")
    shutil.copy(plugin, place / "faulty_plugin.py")
    (place / "conf" / "encoding").mkdir(parents=True)
    (place / "conf" / "encoding" / "faulty.yaml").write_text("name: faulty\nwhat: none\nat: 0\n")
    with Warm(place) as warm:
        here = Here(place, warm)
        _train(here, "good", "loss-none", 0, LENGTHS, PROTOCOLS)
        steps = (1, STEPS // 2, STEPS)
        for what in ("loss-undefined", "loss-endless", "gradient-undefined", "gradient-endless"):
            yield Case(
                f"{what} at a step",
                "diverged before the update, with the step; final; no nan in any table",
                lambda what=what: _diverges(here, what, steps[1:2] if quick else steps),
            )
        yield Case(
            "weights that are not finite in a save",
            "diverged, nothing saved of them, the last good checkpoint stays",
            lambda: _overflows(here),
        )
        for what in ("long-undefined", "long-endless"):
            yield Case(
                f"{what} past 2T",
                "`diverged` in those cells alone, no nan in any table",
                lambda what=what: _at_length(here, what, 2 * T, "diverged"),
            )
        for what in ("long-torch", "long-huge", "long-text", "long-python"):
            yield Case(
                f"out of memory past 2T: {what}",
                "`oom` in those cells alone; the others go on; measured anew by `eval`",
                lambda what=what: _at_length(here, what, 2 * T, "oom"),
            )
        yield Case(
            "out of memory with a batch past 2T",
            "smaller batches, the same numbers",
            lambda: _smaller_batches(here),
        )
        yield Case(
            "a limit of memory that a long window does not fit into (RLIMIT_AS)",
            "exit 0; a number, or `oom` with what it would need; the other lengths have numbers",
            lambda: _limited(place),
        )


def _train(here: Here, folder: str, what: str, at: int, *more: str) -> Ended:
    return here.posenc(
        *("train", "--config-dir", "conf", *TINY, "data.paths=texts", "encoding=faulty"),
        *("plugins=[faulty_plugin]", f"encoding.what={what}", f"encoding.at={at}"),
        *(f"runs_dir={folder}", f"name={folder}", *more),
    )


def _run_of(here: Here, folder: str) -> tuple[Path, dict[str, Any]]:
    (run,) = (here.place / folder / "default").iterdir()
    return run, json.loads((run / "status.json").read_text())


def _tables(here: Here, folder: str) -> dict[str, str]:
    """Everything that `compare` makes of a folder of runs beside the good one, by its kind."""
    words = ("compare", "good", folder, "--allow-mixed")
    found = {}
    for kind in ("table", "markdown", "csv", "latex", "json"):
        ended = here.posenc(*words, "--format", kind)
        if ended.code:
            raise RuntimeError(f"compare --format {kind}: exit {ended.code}: {ended.err[-300:]}")
        found[kind] = ended.out
    page = f"{folder}.html"
    ended = here.posenc(*words, "--html", page)
    if ended.code:
        raise RuntimeError(f"compare --html: exit {ended.code}: {ended.err[-300:]}")
    shown = re.sub(r"<(script|style).*?</\1>", "", (here.place / page).read_text(), flags=re.DOTALL)
    found["html"] = re.sub(r"<[^>]*>", " ", shown)
    return found


def _not_numbers(here: Here, folder: str) -> list[str]:
    """Where a nan or an infinity stands in what was written and printed."""
    tables = _tables(here, folder)
    wrong = [f"{kind}: {found[0]}" for kind, text in tables.items() if (found := WORDS.search(text))]
    rows = csv.reader(io.StringIO(tables["csv"]))
    wrong += ["csv: rows of unequal length"] if len({len(row) for row in rows}) != 1 else []
    for path in (here.place / folder).rglob("*.json*"):
        for line in [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines():
            try:
                json.loads(line, parse_constant=lambda word: _refuse(word))
            except ValueError as error:
                wrong.append(f"{path.name}: {error}")
    return wrong


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _diverges(here: Here, what: str, steps: tuple[int, ...]) -> Seen:
    wrong = []
    kind = what.partition("-")[0]
    for at in steps:
        folder = f"{what}-{at}"
        ended = _train(here, folder, what, at, "train.checkpoint_seconds=0")
        run, status = _run_of(here, folder)
        saved = sorted(path.name for path in run.glob("checkpoints/step-*"))
        reason = f"non-finite {kind} at step {at}"
        checks: dict[str, Callable[[], bool]] = {
            f"exit {ended.code}": lambda ended=ended: (ended.code, ended.out) == (1, ""),
            "the message": lambda ended=ended, reason=reason: reason in ended.err,
            f"status {status}": lambda status=status, at=at, reason=reason: (
                (status["status"], status["step"], status["reason"]) == ("diverged", at - 1, reason)
            ),
            f"checkpoints {saved}": lambda saved=saved, at=at: (
                saved == [f"step-{step:08d}" for step in (at - 2, at - 1) if step > 0]
            ),
            "results.json": lambda run=run: not (run / "results.json").exists(),
        }
        wrong += [f"{folder}: {name}" for name, true in checks.items() if not true()]
        again = _train(here, folder, what, at, "train.checkpoint_seconds=0")
        if again.code != 1 or "diverged" not in again.err or _run_of(here, folder)[1] != status:
            wrong.append(f"{folder}: not final: {again.err[-200:]}")
        wrong += [f"{folder}: {text}" for text in _not_numbers(here, folder)]
    return Seen("diverged, with the step", len(steps), min(len(steps), len(wrong)), tuple(wrong))


def _overflows(here: Here) -> Seen:
    at = STEPS // 2
    ended = _train(here, "weights", "weights", at, "train.checkpoint_seconds=0")
    run, status = _run_of(here, "weights")
    saved = [path.name for path in sorted(run.glob("checkpoints/step-*"))]
    wrong = [] if ended.code == 1 and "weights" in ended.err else [f"exit {ended.code}: {ended.err[-200:]}"]
    wrong += [] if status["status"] == "diverged" else [f"status {status}"]
    wrong += [] if saved == [f"step-{step:08d}" for step in (at - 2, at - 1)] else [f"checkpoints {saved}"]
    wrong += list(run.glob("checkpoints/.tmp*")) and ["something half written is left"]
    wrong += _not_numbers(here, "weights")
    return Seen(str(status["reason"]), failed=int(bool(wrong)), details=tuple(wrong))


def _notes(run: Path) -> dict[tuple[str, int], str | None]:
    records = [json.loads(path.read_text()) for path in (run / "records").iterdir()]
    return {(record["protocol"], record["window"]): record["note"] for record in records}


def _at_length(here: Here, what: str, beyond: int, word: str) -> Seen:
    ended = _train(here, what, what, beyond, LENGTHS, PROTOCOLS)
    run, status = _run_of(here, what)
    wrong = [] if ended.code == 0 else [f"exit {ended.code}: {ended.err[-300:]}"]
    wrong += [] if status["status"] == "finished" else [f"status {status['status']}: {status['reason']}"]
    notes = _notes(run)
    for (protocol, window), note in notes.items():
        fits = protocol == "trigram" or window <= beyond
        if (note is None) != fits or not (fits or str(note).startswith(word)):
            wrong.append(f"{protocol} at {window}: {note}")
    wrong += [] if len(notes) == 3 * 4 + 2 else [f"{len(notes)} cells"]
    if not wrong:
        wrong += [] if word in ended.out else ["the run's own table does not say so"]
        tables = _tables(here, what)
        wrong += [f"{kind}: no `{word}`" for kind, text in tables.items() if word not in text]
        wrong += _not_numbers(here, what)
        before = {path.name: path.stat().st_mtime_ns for path in (run / "records").iterdir()}
        again = here.posenc(
            *("eval", f"run={run}", "plugins=[faulty_plugin]"),
        )
        wrong += [] if again.code == 0 else [f"eval: exit {again.code}: {again.err[-300:]}"]
        after = {path.name: path.stat().st_mtime_ns for path in (run / "records").iterdir()}
        made = sum(before[name] != after[name] for name in before)
        due = sum(str(note).startswith("oom") for note in notes.values())
        wrong += [] if made == due else [f"{made} cells measured again, not {due}"]
    note = next((note for note in notes.values() if note is not None), None)
    return Seen(f"`{note}`", failed=int(bool(wrong)), details=tuple(wrong))


def _smaller_batches(here: Here) -> Seen:
    ended = _train(here, "halved", "long-batch", 2 * T, LENGTHS, PROTOCOLS)
    wrong = [] if ended.code == 0 else [f"exit {ended.code}: {ended.err[-300:]}"]
    ours, theirs = (
        {
            (r["protocol"], r["window"]): r["nats"]
            for r in json.loads((_run_of(here, folder)[0] / "results.json").read_text())["records"]
        }
        for folder in ("halved", "good")
    )
    if ours.keys() != theirs.keys():
        wrong.append(f"cells {ours.keys() ^ theirs.keys()}")
    differ = max((abs(ours[key] - theirs[key]) for key in ours if ours[key] and theirs.get(key)), default=1.0)
    wrong += [] if differ < 1e-6 else [f"losses differ by {differ:.2g} nats"]
    return Seen(f"losses differ by {differ:.1g} nats at most", failed=int(bool(wrong)), details=tuple(wrong))


def _limited(place: Path) -> Seen:
    """The least limit that a short window fits into. A long one may fit too, or is `oom`; nothing dies."""
    long = place / "long"
    long.mkdir()
    texts = [path.read_text() for path in sorted((place / "texts").iterdir())]
    for number in range(len(texts)):
        (long / f"{number}.txt").write_text("".join((texts * 2)[number : number + 20]))
    words = ("train", *TINY, "data.paths=long", "encoding=t5", "eval.max_targets=8", "runs_dir=limited")
    short = posenc(place, *words, "eval.lengths=[1x,2x]")
    if short.code:
        return Seen(f"exit {short.code} without a limit", failed=1, details=(short.err[-300:],))
    (run,) = (place / "limited/default").iterdir()
    for eighths in range(8, 128):  # of a GB: what Python and torch reserve differs from machine to machine
        limit = ("prlimit", f"--as={eighths << 27}")
        if posenc(place, "eval", f"run={run}", "eval.lengths=[1x]", before=limit).code == 0:
            break
    ended = posenc(place, "eval", f"run={run}", "eval.lengths=[1x,2x,4x,2048x]", before=limit)
    notes = _notes(run)
    wrong = [] if ended.code == 0 else [f"exit {ended.code}: {ended.err[-300:]}"]
    note = notes.get(("fixed-target", 2048 * T), "no record")
    if note is not None:
        told = note.startswith("oom") and ("needs" in note or "allocate" in note) and "oom" in ended.out
        wrong += [] if told else [f"note {note}"]
    wrong += [] if notes.get(("fixed-target", 4 * T), "") is None else ["4x has no number"]
    return Seen(f"{eighths / 8} GB: {note or 'a number'}", failed=int(bool(wrong)), details=tuple(wrong))


FAMILY = Family("numbers", cases, needs=("prlimit",))

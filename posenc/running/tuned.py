"""`train.lr=tuned`: the learning rate that did best on validation documents in `experiment=tuning`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posenc.core.console import say
from posenc.core.errors import UserError
from posenc.results.load import Run, load_runs
from posenc.results.schema import HEADLINE

TUNED = "tuned"
FOLDER = "tuning"  # the experiment whose runs are looked at, below runs_dir
FEWEST = 2  # rates to choose from


def tuned_rate(runs_dir: Path, seed: int, hash_at: Callable[[float, int], str]) -> tuple[float, str]:
    """Return the rate with the lowest mean loss at T on validation documents, and in words how it was chosen.

    A run counts if it is finished and only its rate and seed are others: `hash_at(rate, seed)` is its hash.
    Raises UserError where there are fewer than two rates, and for a seed that they were chosen by.
    """
    place, losses, seeds = runs_dir / FOLDER, defaultdict(list), set()
    for run in load_runs([str(place)]) if place.is_dir() else []:
        rate = _rate_of(run)
        if rate is None or run.seed is None or run.name[-8:] != hash_at(rate, run.seed):
            continue
        if (loss := validation_loss(run)) is not None:
            losses[rate].append(loss)
            seeds.add(run.seed)
    if len(losses) < FEWEST:
        problem = f"{len(losses)} rates were tried with these settings below {place}"
        hint = "posenc train -m experiment=tuning encoding=NAME, with the settings of this run"
        raise UserError("train.lr", "tuned", problem, hint=hint)
    if seed in seeds:
        problem = "the rate was chosen by this seed, so its loss would flatter it"
        raise UserError("seed", seed, problem, allowed=f"not {', '.join(map(str, sorted(seeds)))}")
    best = min(losses, key=lambda rate: sum(losses[rate]) / len(losses[rate]))
    if best in (min(losses), max(losses)):
        say(f"train.lr=tuned: {best:g} is at the end of those tried ({_listed(losses)}); try further ones")
    return best, f"best of {_listed(losses)} on validation documents, seeds {_listed(seeds)}"


def _listed(values: Any) -> str:
    return " ".join(f"{one:g}" for one in sorted(values))


def _rate_of(run: Run) -> float | None:
    train = (run.config or {}).get("train")
    rate = train.get("lr") if isinstance(train, dict) else None
    return float(rate) if run.state == "finished" and isinstance(rate, int | float) else None


def validation_loss(run: Run) -> float | None:
    """Return the loss at T on validation documents, None if it was not measured."""
    found = [
        one["nats"]
        for one in run.records
        if one["protocol"] == HEADLINE and one["split"] == "validation" and one["multiple"] == 1
    ]
    return next((one for one in found if one is not None), None)

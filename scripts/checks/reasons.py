"""How often is the sentence "why a row fails" right? Models broken on purpose, each by one known cause.

    python scripts/checks/reasons.py RUN_DIR ... --out docs/records/study-softmax/reasons.json

Each trained model is changed in windows longer than T alone, in one of these ways, and measured by the
protocol `dispersion` at T and 8T. Nothing is trained.
  spread     scores of queries with more than T keys are multiplied by a number below 1
  positions  a query sees the last T tokens alone, and all positions are 8 or 64 times as far apart
  sink       no query sees the first token, of a model that puts a tenth of a layer's weight on it
  none       queries with more than T keys look at the next token: no cause of the three
A case counts if the loss rises by half a bit, since only collapsed rows get a sentence. Models that collapse
by themselves are repaired, too, which tells their cause by another route:
  positions  no distance is larger than in training (`extend=rerope`)
  spread     scores are sharpened by log(visible keys) / log(T) (`extend=logn`)
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.data import prepare
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.composed import Composed
from posenc.evaluation.extensions import Extension, build_extension, default_knobs
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols.dispersion import Dispersion
from posenc.evaluation.request import EvalRequest
from posenc.results.beside.dispersion import SINK_WEIGHT, DispersionCell, RowDispersion, reasons_of
from posenc.results.statistics.verdicts import COLLAPSED_MARGIN
from posenc.running.model_parts import build_model
from posenc.running.stored_run import StoredRun, stored_run
from posenc.training.checkpoint import load_weights

STRETCHED_HOOKS = {"embed", "rotate", "distance_bias", "bias"}  # whose positions `Stretched` multiplies
MULTIPLE = 8  # of T, the longest window
COLLAPSED_NATS = COLLAPSED_MARGIN * math.log(2)  # a byte


class LastKeys(Encoding):
    """Show each query the last T tokens alone, by their place in the window."""

    name = "last_keys"

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return _age(q_pos, k_pos) < self.shape.train_length


class WithoutFirst(Encoding):
    """Hide the first token of the window."""

    name = "without_first"

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return _age(q_pos, k_pos) < torch.arange(len(k_pos) - len(q_pos), len(k_pos))[:, None]


def _age(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Return how many tokens each key is before each query, (T, S), whatever their positions are."""
    index = torch.arange(len(k_pos))
    return index[len(k_pos) - len(q_pos) :, None] - index[None, :]


class Flattened(Encoding):
    """Multiply the scores of queries that have more keys than in training, which makes weights more equal."""

    name = "flattened"

    def __init__(self, shape: Shape, factor: float) -> None:
        super().__init__(shape)
        self.factor = factor

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return torch.where(_has_more_keys(s, self.shape.train_length), self.factor * s, s)


class Misplaced(Encoding):
    """Give each key the score of the key before, for queries that have more keys than in training."""

    name = "misplaced"

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        has_more = _has_more_keys(s, self.shape.train_length)
        return torch.where(has_more, s.roll(1, dims=-1), s)


def _has_more_keys(s: Tensor, train_length: int) -> Tensor:
    """Return where a query has more keys than in training: scores (B, H, T, S) -> (T, 1)."""
    queries, keys = s.shape[-2:]
    return (torch.arange(keys - queries, keys) >= train_length)[:, None]


class Stretched(Composed):
    """Act as an encoding does at positions that are `factor` times as large."""

    def __init__(self, shape: Shape, encoding: Encoding, factor: int) -> None:
        super().__init__(shape, (encoding,))
        self.stretched = encoding
        self.factor = factor
        if "rotate" in encoding.hooks:
            self.rotate = self._rotate  # type: ignore[method-assign]

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return self.stretched.embed(x, self.factor * pos, layer)

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return self.stretched.distance_bias(self.factor * r, layer)

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return self.stretched.bias(self.factor * q_pos, self.factor * k_pos, layer)

    def _rotate(
        self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int
    ) -> tuple[Tensor, Tensor]:
        return self.stretched.rotate(q, k, self.factor * q_pos, self.factor * k_pos, layer)


Alteration = Callable[[Encoding], Encoding]


def flattened(factor: float) -> Alteration:
    """Return the alteration that multiplies the scores of queries past T by a number."""
    return lambda trained: Composed(trained.shape, (trained, Flattened(trained.shape, factor)))


def placed_far(factor: int) -> Alteration:
    """Return the alteration that places all positions farther apart, without a key more than in training."""

    def alter(trained: Encoding) -> Encoding:
        shape = trained.shape
        return Composed(shape, (Stretched(shape, trained, factor), LastKeys(shape)))

    return alter


def without_first(trained: Encoding) -> Encoding:
    """Hide the first token."""
    return Composed(trained.shape, (trained, WithoutFirst(trained.shape)))


def misplaced(trained: Encoding) -> Encoding:
    """Move all weights to the next token."""
    return Composed(trained.shape, (trained, Misplaced(trained.shape)))


# what is done -> the reason that it should give, and how it is done
ALTERATIONS: dict[str, tuple[str, Alteration]] = {
    "scores x 0.5": ("spread", flattened(0.5)),
    "scores x 0.2": ("spread", flattened(0.2)),
    "positions x 8, last T tokens alone": ("positions", placed_far(8)),
    "positions x 64, last T tokens alone": ("positions", placed_far(64)),
    "the first token hidden": ("sink", without_first),
    "weights one token off": ("none", misplaced),
}
REPAIRS = {"positions": "rerope", "spread": "logn"}


@dataclass(eq=False)
class OnPurpose(Extension):
    """Alter the trained encoding in windows longer than T."""

    name = "on_purpose"

    alter: Alteration

    def effective_encoding(self, window: int) -> Encoding:
        return self.trained if window <= self.shape.train_length else self.alter(self.trained)


@dataclass(frozen=True)
class Case:
    """A model under one alteration: its cause, and the numbers that the criteria read."""

    run: str
    encoding: str
    altered: str
    cause: str  # the reason that it should give; "" for a model as trained
    change: float  # of the loss at 8T, nats
    has_collapsed: bool
    reasons: list[str]
    far_share: float | None
    entropy_rise: float  # as a share of log 8
    variance_ratio: float | None
    sink_at_t: float  # largest weight on the first token at T, of all layers
    sink_left: float  # share of it that is left at 8T
    repaired: dict[str, float]  # cause -> harm that is left when it is taken away, of a model as trained


class Measured:
    """A trained model, and the windows that it is measured in."""

    def __init__(self, run: StoredRun, max_targets: int) -> None:
        self.run = run
        self.train_length = run.settings.context_length
        self.store = prepare(run.settings.data, run.settings.tokenizer)
        self.model = build_model(run.settings, run.shape, self.store.vocab_size)
        load_weights(run.checkpoint, self.model)
        self.model.eval()
        self.protocol = Dispersion(Dispersion.Settings(target_fraction=0.25))
        lengths = EvalLengths.of([self.train_length, MULTIPLE * self.train_length], self.train_length)
        request = EvalRequest(store=self.store, split="test", lengths=lengths, max_targets=max_targets)
        self.plan = self.protocol.plan(request)
        self.at_t = self.cell(1, None)

    def cell(self, multiple: int, extension: Extension | None) -> DispersionCell:
        """Return what attention does at a multiple of T."""
        window = multiple * self.train_length
        context = EvalContext(
            model=self.model,
            context_length=self.train_length,
            seed=0,
            precision="fp32",
            device=torch.device("cpu"),
            store=self.store,
            split="test",
            batch_tokens=4096,
            extension=extension,
        )
        sums = self.protocol.measure(context, self.plan, window)
        dispersion: Any = sums.extra["dispersion"]
        return DispersionCell(
            multiple=multiple,
            window=window,
            nats=float(sums.nats.sum() / sums.targets.sum()),
            entropy=tuple(dispersion["entropy"]),
            first=tuple(dispersion["first"]),
            variance=tuple(dispersion["variance"]),
            far_nats=dispersion["far_nats"],
            seeds=1,
        )

    def case(self, altered: str, cause: str, extension: Extension | None) -> Case:
        """Measure the model with an alteration."""
        at_t = self.at_t
        longest = self.cell(MULTIPLE, extension)
        row = RowDispersion((at_t, longest), None)
        change = longest.nats - at_t.nats
        layer = at_t.sink_layer
        return Case(
            run=self.run.directory.name,
            encoding=self.run.settings.encoding.name,
            altered=altered,
            cause=cause,
            change=change,
            has_collapsed=change >= COLLAPSED_NATS,
            reasons=list(reasons_of(at_t, longest, row.far_share)),
            far_share=row.far_share,
            entropy_rise=(longest.mean_entropy - at_t.mean_entropy) / math.log(MULTIPLE),
            variance_ratio=row.variance_ratio,
            sink_at_t=at_t.first[layer],
            sink_left=longest.first[layer] / at_t.first[layer] if at_t.first[layer] else 1.0,
            repaired=self.repaired(change) if not cause else {},
        )

    def repaired(self, change: float) -> dict[str, float]:
        """Return the share of the harm that each repair leaves; a repair that does not fit is left out."""
        if change < COLLAPSED_NATS:
            return {}
        share_left = {}
        for cause, name in REPAIRS.items():
            try:
                extension = build_extension({"name": name, **default_knobs(name)}, self.model)
            except UserError:
                continue
            repaired = self.cell(MULTIPLE, extension).nats - self.at_t.nats
            share_left[cause] = repaired / change
        return share_left


def cases_of(run: StoredRun, max_targets: int) -> list[Case]:
    """Measure a model as trained and under every alteration."""
    measured = Measured(run, max_targets)
    cases = [measured.case("as trained", "", None)]
    print(cases[-1], flush=True)
    for altered, (cause, alter) in ALTERATIONS.items():
        if cause == "sink" and cases[0].sink_at_t < SINK_WEIGHT:
            continue  # there is no sink to break
        if cause == "positions" and measured.model.encoding.hooks.isdisjoint(STRETCHED_HOOKS):
            continue  # `Stretched` would change nothing
        try:
            cases.append(measured.case(altered, cause, OnPurpose(measured.model, alter)))
        except (UserError, ValueError) as error:
            print(run.directory.name, altered, "left out:", error, flush=True)
            continue
        print(cases[-1], flush=True)
    return cases


def main() -> None:
    """Write the file; the cases of other runs stay in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run directories")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-targets", type=int, default=1000)
    arguments = parser.parse_args()
    cases = json.loads(arguments.out.read_text()) if arguments.out.is_file() else []
    for directory in arguments.runs:
        name = Path(directory).name
        if any(case["run"] == name for case in cases):
            continue
        measured = cases_of(stored_run(directory, []), arguments.max_targets)
        cases += [asdict(case) for case in measured]
        # Written after each run, so that a command that was stopped goes on with the next one.
        arguments.out.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()

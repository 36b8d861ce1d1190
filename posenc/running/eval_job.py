"""`posenc eval`: measure a run again, at other lengths, by other protocols or on another corpus.

The run's config.yaml is read as plain data. Nothing that it names is imported: its encoding must be one of
posenc's, an installed one, or in a plug-in named on this command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.cli.eval_runs import refuse_several
from posenc.config.checks import (
    EvalPlan,
    check_evaluation,
    check_name,
    check_positions_reach,
    default_evaluation,
)
from posenc.core.errors import UserError
from posenc.data import CorpusFacts, absolute_data, check_tokenizer, inspect, stored_tokenizer
from posenc.evaluation.extensions import build_extension
from posenc.model.decoder import ModelShape
from posenc.running.stored_run import not_ours, stored_run
from posenc.tracking import check_tracking
from posenc.training.precision import resolve_device


@dataclass(frozen=True)
class EvalJob:
    """A validated evaluation of a run on disk."""

    directory: Path
    trained: dict[str, Any]  # the run's own settings
    data: dict[str, Any]  # the corpus to measure on
    tokenizer: dict[str, Any]  # the very one it was trained with
    tracking: dict[str, Any]
    facts: CorpusFacts
    shape: ModelShape
    device: torch.device
    evaluation: EvalPlan


def eval_job(settings: dict[str, Any]) -> EvalJob:
    """The validated job of a composed `eval` configuration. Raises UserError; RunError for damaged files."""
    refuse_several(str(settings["run"]))
    stored = stored_run(settings["run"], settings["plugins"])
    trained, checkpoint = stored.settings, stored.checkpoint
    try:
        check_name("experiment_name", trained["experiment_name"])
        asked = {key: value for key, value in settings["eval"].items() if value is not None}
        # a run from before a setting existed has the default of it
        evaluation = check_evaluation(
            {**default_evaluation(), **trained["eval"], **asked},
            trained["context_length"],
            settings["extend"],
        )
        data = absolute_data(settings["data"] or trained["data"])
        check_tokenizer(trained["tokenizer"])
        precision = trained["train"]["precision"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise not_ours(settings["run"], error) from error
    check_positions_reach(stored.outline, max(evaluation.windows))
    build_extension(evaluation.extend, stored.outline)  # refused now, if it does not apply
    if evaluation.tune and max(evaluation.windows) <= trained["context_length"]:
        raise UserError("extend.tune", True, "there is no length beyond context_length to choose by")
    if precision not in ("fp32", "bf16"):
        raise UserError("run", settings["run"], f"its precision {precision!r} is not one of posenc's")
    check_tracking(settings["tracking"])
    device = resolve_device(settings["device"])
    definition = checkpoint.path / "tokenizer.json"
    tokenizer = stored_tokenizer(definition) if definition.is_file() else trained["tokenizer"]
    longest = max(evaluation.windows)
    for split in evaluation.splits:
        facts = inspect(data, tokenizer, split=split, needed_tokens=longest + 1, context_length=None)
    if settings["data"] is None and facts.fingerprint != checkpoint.state.get("fingerprint"):
        raise UserError(
            "data",
            facts.name,
            "its text is not what this run was trained on any more (another fingerprint)",
            hint=f"to measure on it all the same say data={facts.name}",
        )
    return EvalJob(
        stored.directory,
        trained,
        data,
        tokenizer,
        settings["tracking"],
        facts,
        stored.shape,
        device,
        evaluation,
    )

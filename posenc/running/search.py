"""`posenc train -m hydra/sweeper=NAME`: a sweeper of Hydra chooses trainings by their validation loss at T.

Unlike the jobs of a grid these run in this process, one after the other: the next follows from the last.
"""

from __future__ import annotations

import math

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from posenc.config.compose import ComposedJob, initialized, plain_settings
from posenc.config.hydra_adapter import sweep_by_plugin
from posenc.config.overrides import CommandLine
from posenc.core.console import say
from posenc.core.errors import RunError, UserError
from posenc.results.load import load_run
from posenc.results.schema import HEADLINE
from posenc.running.jobs import HELD, run_job, validated
from posenc.running.sweep import show_tables
from posenc.running.train_job import DivergedRunError
from posenc.running.tuned import validation_loss


class _Stopped(BaseException):
    """A signal came, and the run is saved; not an Exception, which a sweeper may take for a failed trial."""


def run_search(line: CommandLine, base: ComposedJob) -> int:
    """Run what the sweeper asks for and print the comparison; return the exit code, of a signal too.

    Raises UserError where the loss on validation documents would not be measured, and what a run raises.
    """
    evaluation = base.settings["eval"]
    if evaluation["split"] != "validation" or HEADLINE not in evaluation["protocols"]:
        problem, hint = "a search must not choose on test documents", "experiment=tuning measures validation"
        raise UserError("eval.split", evaluation["split"], problem, hint=hint)
    trained: list[ComposedJob] = []

    def loss_at_t(config: DictConfig) -> float:
        job = ComposedJob(list(HydraConfig.get().overrides.task), plain_settings("train", config))
        place = validated("train", job.settings).directory
        trained.append(job)
        try:
            code = run_job("train", job, in_sweep=True)
        except DivergedRunError as error:
            say(error.text())
            return math.inf
        if code == HELD:
            raise RunError(f"another process trains {place}")
        if code:
            raise _Stopped(code)
        loss = validation_loss(load_run(place))
        assert loss is not None
        return loss

    code = 0
    try:
        with initialized(line.config_dir) as search:
            sweep_by_plugin("train", [*search, *line.overrides], loss_at_t)
    except _Stopped as stop:
        code = int(stop.args[0])
    finally:
        if trained:
            show_tables("train", trained)
    return code

"""What Hydra itself answers for `posenc train` and `posenc eval`: `--cfg`, `--info`. No job runs."""

from __future__ import annotations

import logging
import sys

import hydra
from omegaconf import DictConfig

from posenc.config.schema import register_schemas
from posenc.core.paths import conf_dir


def print_answer(command: str, arguments: list[str]) -> None:
    """What `hydra.main` prints for these arguments."""
    register_schemas()

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=command)
    def answer(config: DictConfig) -> None:
        raise AssertionError("the arguments ask for a job")

    before, sys.argv = sys.argv, [f"posenc {command}", *arguments]
    raising = logging.raiseExceptions
    logging.raiseExceptions = False  # Hydra logs its answers, into `head` too
    try:
        answer()
    finally:
        sys.argv, logging.raiseExceptions = before, raising

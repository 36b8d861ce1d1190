"""`posenc dashboard`: the W&B workspace that compares encodings."""

from __future__ import annotations

import yaml

from posenc.core.atomic_files import write_text_atomic
from posenc.core.console import say
from posenc.core.errors import UserError
from posenc.core.paths import conf_dir, output_file
from posenc.evaluation import PROTOCOLS
from posenc.report import captions
from posenc.results.selection import parse_multiple
from posenc.tracking.base import refuse_without

NAME = "posenc: encodings by context"


def make_dashboard(
    entity: str | None,
    project: str | None,
    *,
    protocol: str,
    length: str,
    dry_run: bool,
    out: str | None,
) -> None:
    """Save the workspace and print its address; with `dry_run` or `out` only write its JSON.

    `length` is the multiple of T of the bars. Raises UserError without the package or a key, RunError where
    the server refuses it.
    """
    refuse_without("wandb_workspaces", "dashboard", None, "dashboard")
    multiple = captions.length(parse_multiple(length))
    if protocol.partition("+")[0] not in PROTOCOLS:  # fixed-target+yarn: with a test-time extension
        raise UserError("--protocol", protocol, "there is no such protocol", allowed=list(PROTOCOLS))
    place = None if out is None else output_file("--out", out)
    from posenc.tracking import workspace as views
    from posenc.tracking.wandb import settings

    if project is None and (project := settings().project) is None:
        project = yaml.safe_load((conf_dir() / "tracking" / "wandb.yaml").read_text(encoding="utf-8"))[
            "project"
        ]
    owner = entity or settings().entity
    if dry_run or place is not None:
        text = views.as_json(views.build_workspace(owner or "ENTITY", project, NAME, protocol, multiple))
        if place is None:
            print(text)
        else:
            write_text_atomic(place, text + "\n")
            say(f"written: {out}; nothing was sent")
        return
    views.check_login()
    owner = owner or views.default_entity()
    print(views.save(views.build_workspace(owner, project, NAME, protocol, multiple)))

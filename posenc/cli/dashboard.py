"""`posenc dashboard`: the W&B workspace that compares encodings."""

from __future__ import annotations

import yaml

from posenc.core.atomic_files import write_text_atomic
from posenc.core.console import say
from posenc.core.errors import UserError
from posenc.core.paths import conf_dir, output_file
from posenc.evaluation import PROTOCOLS
from posenc.report import captions
from posenc.results.rows import parse_multiple
from posenc.tracking import refuse_without

NAME = "posenc: encodings by context"


def make_dashboard(
    entity: str | None, project: str | None, *, protocol: str, length: str, out: str | None
) -> None:
    """Save the workspace and print its address; with `out` only write its JSON.

    `length` is the multiple of T of the bars. Raises UserError without the package or a key, RunError where
    the server refuses it.
    """
    refuse_without("wandb_workspaces", "dashboard", None, "dashboard")
    multiple = captions.length(parse_multiple(length))
    if protocol.partition("+")[0] not in PROTOCOLS:  # fixed-target+yarn: with a test-time extension
        raise UserError("--protocol", protocol, "there is no such protocol", allowed=list(PROTOCOLS))
    place = None if out is None else output_file("--out", out)
    from posenc.tracking import workspace
    from posenc.tracking.wandb import settings

    if project is None and (project := settings().project) is None:
        shipped = (conf_dir() / "tracking" / "wandb.yaml").read_text(encoding="utf-8")
        project = yaml.safe_load(shipped)["project"]
    entity, view = entity or settings().entity, (str(project), NAME, protocol, multiple)
    if place is not None:
        built = workspace.build_workspace(entity or "ENTITY", *view)
        write_text_atomic(place, workspace.as_json(built) + "\n")
        say(f"written: {out}; nothing was sent")
        return
    print(workspace.save(entity, *view))

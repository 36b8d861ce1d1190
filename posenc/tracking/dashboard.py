"""Build the W&B workspace that compares encodings (`posenc dashboard`)."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import write_text_atomic
from posenc.core.console import say
from posenc.core.errors import RunError, UserError
from posenc.core.library_calls import run_interruptible
from posenc.core.paths import output_file
from posenc.core.quantities import length_text
from posenc.evaluation.protocols import protocol_names
from posenc.results.measurements import parse_multiple
from posenc.tracking import refuse_without
from posenc.tracking.curves import POSITION, WINDOW
from posenc.tracking.tracker import error_text
from posenc.tracking.wandb import host, load_wandb, log_in, project_of, user_settings

WORKSPACE_NAME = "posenc: encodings by context"
MOST_RUNS = 200  # W&B would show ten
SERVER_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class View:
    """Name what the workspace shows."""

    project: str
    protocol: str  # `fixed-target+yarn` with a test-time extension
    multiple: str  # `8x`: the bars show the loss at this multiple of T


def make_dashboard(
    entity: str | None, project: str | None, protocol: str, length: str, out: str | None
) -> None:
    """Save the workspace, with bars at `length` times T, and print its address; or write its JSON to `out`.

    Raises UserError for wrong names, RunError if the server does not take it.
    """
    refuse_without("wandb_workspaces", "dashboard", None, "dashboard")
    multiple = length_text(parse_multiple(length, "--length"))
    name, _, _ = protocol.partition("+")  # without the extension
    if name not in protocol_names():
        raise UserError("--protocol", protocol, "there is no such protocol", allowed=protocol_names())
    view = View(project_of(project), protocol, multiple)
    owner = entity or user_settings().entity
    # Before the key is asked for: a file needs no account.
    if out is not None:
        _write(build_workspace(owner or "ENTITY", view), output_file("--out", out))
        say(f"written: {out}; nothing was sent")
        return
    if not log_in():
        hint = "run `wandb login`, which says where to get one; --out needs none"
        raise UserError("WANDB_API_KEY", None, f"there is no W&B API key for {host()}", hint=hint)
    print(_send(owner, view))


def _write(workspace: Any, file: Path) -> None:
    """Write a workspace as the JSON that W&B's server takes."""
    # wandb-workspaces has no public way to write a workspace without sending it (0.4.13).
    text = workspace._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)
    write_text_atomic(file, text + "\n")


def _send(owner: str | None, view: View) -> str:
    """Save the workspace on the server and return its address. Raises RunError."""

    def save() -> str:
        api = load_wandb().Api(timeout=int(SERVER_TIMEOUT))
        # Only the server knows the account's own team, so that this belongs inside the time limit.
        workspace = build_workspace(owner or api.default_entity, view)
        workspace.save()
        return str(workspace.url)

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return run_interruptible(save, limit=SERVER_TIMEOUT)
    except Exception as error:
        server = f"the W&B server {host()}"
        problem = f"{server} does not answer" if isinstance(error, TimeoutError) else f"{server} refuses"
        hint = "--out FILE keeps what would be sent"
        raise RunError(f"{problem} ({error_text(error)})", hint=hint) from error


def build_workspace(entity: str, view: View) -> Any:
    """Build a workspace grouped by encoding: curves by window, bars at the multiple, bands over seeds."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    grouping: dict[str, Any] = {  # of every panel
        "max_runs_to_show": MOST_RUNS,
        "groupby": wr.Config("encoding.name"),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
    }
    nats = f"eval/{view.protocol}/nats"
    by_position = "eval/positions/nats-by-position"
    title = f"{view.protocol}: nats per token"
    losses: Any = ["train/loss", "train/validation_loss"]
    panels: Any = [
        wr.LinePlot(title=f"{title} by window", x=WINDOW, y=[nats], log_x=True, **grouping),
        wr.LinePlot(title="nats per token by position", x=POSITION, y=[by_position], log_x=True, **grouping),
        wr.BarPlot(title=f"{title} at {view.multiple}", metrics=[f"{nats}@{view.multiple}"], **grouping),
        wr.BarPlot(title=f"{title} at 1x", metrics=[f"{nats}@1x"], **grouping),
        wr.LinePlot(title="training: loss", x="train/tokens", y=losses, **grouping),
    ]
    section = ws.Section(name="Loss by encoding", panels=panels, is_open=True)
    return ws.Workspace(
        entity=entity,
        project=view.project,
        name=WORKSPACE_NAME,
        sections=[section],
        settings=ws.WorkspaceSettings(max_runs=MOST_RUNS),
    )

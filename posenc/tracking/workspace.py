"""Build a W&B workspace that compares encodings, without network; `save` sends it."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from posenc.core.console import run_interruptible
from posenc.core.errors import RunError, UserError
from posenc.tracking.base import POSITION, WINDOW, reason
from posenc.tracking.wandb import has_key, host, load_wandb

MOST_RUNS = 200  # W&B would show ten
SECONDS = 10.0  # to ask the server


def build_workspace(entity: str, project: str, name: str, protocol: str, multiple: str) -> Any:
    """Build a workspace: curves of `protocol` against the window, bars at `multiple` (8x), by encoding.

    Bands and whiskers are the standard deviation over the runs of an encoding: its seeds, where nothing else
    differs.
    """
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    by_encoding: dict[str, Any] = {
        "max_runs_to_show": MOST_RUNS,
        "groupby": wr.Config("encoding.name"),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
    }
    nats, by_position = f"eval/{protocol}/nats", "eval/positions/nats-by-position"
    panels: Any = [
        wr.LinePlot(
            title=f"{protocol}: nats per token by window", x=WINDOW, y=[nats], log_x=True, **by_encoding
        ),
        wr.LinePlot(
            title="nats per token by position", x=POSITION, y=[by_position], log_x=True, **by_encoding
        ),
        *(
            wr.BarPlot(title=f"{protocol}: nats per token at {at}", metrics=[f"{nats}@{at}"], **by_encoding)
            for at in (multiple, "1x")
        ),
        wr.LinePlot(title="training: loss", x="train/tokens", y=["train/loss"], **by_encoding),
    ]
    section = ws.Section(name="Loss by encoding", panels=panels, is_open=True)
    shown = ws.WorkspaceSettings(max_runs=MOST_RUNS)
    return ws.Workspace(entity=entity, project=project, name=name, sections=[section], settings=shown)


def as_json(workspace: Any) -> str:
    """Return what would be sent to W&B."""
    text: str = workspace._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)
    return text


def save(entity: str | None, *view: str) -> str:
    """Add the view to the project's saved ones and return its address; without `entity` the account's own.

    Raises UserError without a key, RunError within seconds where the server refuses.
    """
    if not has_key():
        hint = "run `wandb login`, which says where to get one; --out needs none"
        raise UserError("WANDB_API_KEY", None, f"there is no W&B API key for {host()}", hint=hint)

    def send(_: object) -> str:
        owner = entity or load_wandb().Api(timeout=int(SECONDS)).default_entity
        workspace = build_workspace(owner, *view)
        workspace.save()
        return str(workspace.url)

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return run_interruptible(send, limit=SECONDS)
    except Exception as error:
        problem = "does not answer" if isinstance(error, TimeoutError) else "refuses"
        hint = "--out FILE keeps what would be sent"
        raise RunError(f"the W&B server {host()} {problem} ({reason(error)})", hint=hint) from error

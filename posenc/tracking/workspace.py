"""Build a W&B workspace that compares encodings, without network; `save` sends it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

from posenc.core.console import run_interruptible
from posenc.core.errors import RunError, UserError
from posenc.report.charts import PLOTS
from posenc.tracking.base import reason
from posenc.tracking.wandb import POSITION, has_key, host, load_wandb

MOST_RUNS = 200  # W&B would show ten
SECONDS = 10.0  # to ask the server
TRAINING = {"loss": "nats per token", "lr": "lr", "grad_norm": "norm", "tokens_per_second": "1/s"}


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

    def curve(x: str, title_x: str, y: str, title: str, title_y: str) -> Any:
        look = {**by_encoding, "title": title, "title_x": title_x, "title_y": title_y}
        return wr.LinePlot(x=x, y=[y], log_x=x.startswith("eval/"), **look)

    def bars(at: str) -> Any:
        title = f"{protocol}: nats per token at {at}"
        return wr.BarPlot(title=title, metrics=[f"eval/{protocol}/nats@{at}"], orientation="h", **by_encoding)

    context = ("eval/window", "window (tokens)", f"eval/{protocol}/nats")
    position = (POSITION, "position (tokens)", "eval/positions/nats-by-position")
    sections = {
        "Loss against context": [
            curve(*context, f"{protocol}: nats per token against context", "nats per token"),
            curve(*position, "nats per token by position", "nats per token"),
        ],
        f"At {multiple}": [bars(multiple), bars("1x")],
        "Training": [
            curve("train/tokens", "tokens", f"train/{name}", f"training: {name}", unit)
            for name, unit in TRAINING.items()
        ],
        "Runs": [
            wr.RunComparer(diff_only="split"),
            wr.WeavePanelSummaryTable(table_name="evaluation"),
            wr.MediaBrowser(title="plots", media_keys=[f"plots/{kind}" for kind in PLOTS]),
        ],
    }
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[ws.Section(name=t, panels=panels, is_open=t != "Runs") for t, panels in sections.items()],
        settings=ws.WorkspaceSettings(max_runs=MOST_RUNS),
    )


def as_json(workspace: Any) -> str:
    """Return what would be sent to W&B."""
    text: str = workspace._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)
    return text


def check_login() -> None:
    """Raise UserError where there is no key."""
    if not has_key():
        hint = "run `wandb login`, which says where to get one; --dry-run and --out need none"
        raise UserError("WANDB_API_KEY", None, f"there is no W&B API key for {host()}", hint=hint)


def default_entity() -> str:
    """Ask for the account's own entity. Raises RunError."""
    found = _asked(lambda: load_wandb().Api(timeout=int(SECONDS)).default_entity)
    if not found:
        raise RunError("W&B does not say which entity is yours", hint="name it: --entity NAME")
    return str(found)


def save(workspace: Any) -> str:
    """Add it to the project's saved views and return its address. Raises RunError within seconds."""

    def send() -> str:
        workspace.save()
        return str(workspace.url)

    return str(_asked(send))


def _asked(action: Callable[[], Any]) -> Any:
    """Ask the server, quietly, within limits."""
    hint = "--out FILE keeps what would be sent"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return run_interruptible(lambda _: action(), limit=SECONDS)
    except TimeoutError as error:
        raise RunError(f"the W&B server {host()} does not answer ({error})", hint=hint) from error
    except Exception as error:
        raise RunError(f"W&B refuses ({reason(error)})", hint=hint) from error

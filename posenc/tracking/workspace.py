"""A W&B workspace that compares encodings: built without network, saved by `save`."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from posenc.core.errors import RunError, UserError
from posenc.tracking.guard import GivenUpError, one_line, reason, within
from posenc.tracking.wandb_run import POSITION
from posenc.tracking.wandb_server import answers, credentials, host_of, load_wandb, server_url

MOST_RUNS = 200  # W&B would show ten
SECONDS = 10.0  # saving; the probe before it needs two at most
TRAINING = {"loss": "nats per token", "lr": None, "grad_norm": None, "tokens_per_second": None}


def build_workspace(entity: str, project: str, name: str, protocol: str, multiple: str) -> Any:
    """The workspace `name`: curves of `protocol` against the window, bars at `multiple` (8x), by encoding.

    Bands and whiskers are the standard deviation over the runs of an encoding: its seeds, where nothing else
    differs.
    """
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    by_encoding: dict[str, Any] = {
        "groupby": wr.Config("encoding.name"),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
        "max_runs_to_show": MOST_RUNS,
    }

    def curve(measure: str, unit: str) -> Any:
        return wr.LinePlot(
            title=f"{protocol}: {unit} against context",
            x="eval/window",
            y=[f"eval/{protocol}/{measure}"],
            log_x=True,
            title_x="window (tokens)",
            title_y=unit,
            **by_encoding,
        )

    def by_position(measure: str, unit: str) -> Any:
        return wr.LinePlot(
            title=f"{unit} by position",
            x=POSITION,
            y=[f"eval/positions/{measure}-by-position"],
            log_x=True,
            title_x="position (tokens)",
            title_y=unit,
            **by_encoding,
        )

    def bars(at: str) -> Any:
        return wr.BarPlot(
            title=f"{protocol}: nats per token at {at}",
            metrics=[f"eval/{protocol}/nats@{at}"],
            orientation="h",
            **by_encoding,
        )

    def training(measure: str, unit: str | None) -> Any:
        grouped = by_encoding if measure == "loss" else {"max_runs_to_show": MOST_RUNS}
        return wr.LinePlot(
            title=f"training: {measure.replace('_', ' ')}",
            x="train/tokens",
            y=[f"train/{measure}"],
            title_x="tokens",
            title_y=unit,
            **grouped,
        )

    plots = [f"plots/{kind}" for kind in ("context", "change", "positions", "training", "probes")]
    sections = {
        "Loss against context": [curve("nats", "nats per token"), curve("bpb", "bits per byte")],
        f"At {multiple}": [bars(multiple), bars("1x")],
        "By position": [
            by_position("nats", "nats per token"),
            by_position("rise", "rise over the loss at T"),
        ],
        "Training": [training(measure, unit) for measure, unit in TRAINING.items()],
        "Runs": [
            wr.RunComparer(diff_only="split"),
            wr.WeavePanelSummaryTable(table_name="evaluation"),
            wr.MediaBrowser(title="plots", media_keys=plots),
        ],
    }
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[
            ws.Section(name=title, panels=panels, is_open=title != "Runs")
            for title, panels in sections.items()
        ],
        settings=ws.WorkspaceSettings(max_runs=MOST_RUNS),
    )


def as_json(workspace: Any) -> str:
    """What would be sent to W&B."""
    text: str = workspace._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)
    return text


def check_login() -> None:
    """Raise UserError where there is no key."""
    url = server_url()
    if credentials(url) is None:
        raise UserError(
            "WANDB_API_KEY",
            None,
            f"there is no W&B API key for {one_line(host_of(url))}",
            hint="run `wandb login`, which says where to get one; --dry-run and --out need none",
        )


def default_entity() -> str:
    """The account's own entity. Raises RunError."""
    found = _asked(lambda: load_wandb().Api(timeout=int(SECONDS)).default_entity)
    if not found:
        raise RunError("W&B does not say which entity is yours", hint="name it: --entity NAME")
    return str(found)


def save(workspace: Any) -> str:
    """Add it to the project's saved views; its address. Raises RunError within seconds."""

    def send() -> str:
        workspace.save()
        return str(workspace.url)

    return str(_asked(send))


def _asked(action: Any) -> Any:
    """Ask the server, quietly, within limits."""
    url = server_url()
    host = one_line(host_of(url))
    hint = "--out FILE keeps what would be sent"
    if not answers(url):
        raise RunError(f"the W&B server {host} does not answer", hint=hint)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            return within(SECONDS, action)
    except GivenUpError as error:
        raise RunError(f"the W&B server {host} does not answer ({error})", hint=hint) from error
    except Exception as error:
        raise RunError(f"W&B refuses ({reason(error)})", hint=hint) from error

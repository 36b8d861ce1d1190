"""`posenc dashboard`: build the W&B workspace that compares encodings, and save it."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import yaml

from posenc.core.atomic_files import write_text_atomic
from posenc.core.console import run_interruptible, say
from posenc.core.errors import RunError, UserError
from posenc.core.paths import conf_dir, output_file
from posenc.evaluation import PROTOCOLS
from posenc.report import captions
from posenc.results.settings import parse_multiple
from posenc.tracking import refuse_without
from posenc.tracking.base import POSITION, WINDOW, reason
from posenc.tracking.wandb import has_key, host, load_wandb, settings

NAME = "posenc: encodings by context"
MOST_RUNS = 200  # W&B would show ten
SECONDS = 10.0  # to ask the server


def make_dashboard(
    entity: str | None, project: str | None, protocol: str, length: str, out: str | None
) -> None:
    """Save the workspace, bars at `length` times T, and print its address; or write its JSON to `out`."""
    refuse_without("wandb_workspaces", "dashboard", None, "dashboard")
    multiple = captions.length(parse_multiple(length, "--length"))
    if protocol.partition("+")[0] not in PROTOCOLS:  # fixed-target+yarn: with a test-time extension
        raise UserError("--protocol", protocol, "there is no such protocol", allowed=list(PROTOCOLS))
    if (project := project or settings().project) is None:
        text = (conf_dir() / "tracking" / "wandb.yaml").read_text(encoding="utf-8")
        project = str(yaml.safe_load(text)["project"])
    view, owner = (project, protocol, multiple), entity or settings().entity
    if out is not None:
        place = output_file("--out", out)
        model = build_workspace(owner or "ENTITY", *view)._to_model()
        write_text_atomic(place, model.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n")
        say(f"written: {out}; nothing was sent")
        return
    if not has_key():
        hint = "run `wandb login`, which says where to get one; --out needs none"
        raise UserError("WANDB_API_KEY", None, f"there is no W&B API key for {host()}", hint=hint)

    def send() -> str:
        api = load_wandb().Api(timeout=int(SECONDS))
        workspace = build_workspace(owner or api.default_entity, *view)
        workspace.save()
        return str(workspace.url)

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            address = run_interruptible(send, limit=SECONDS)
    except Exception as error:
        problem = "does not answer" if isinstance(error, TimeoutError) else "refuses"
        hint = "--out FILE keeps what would be sent"
        raise RunError(f"the W&B server {host()} {problem} ({reason(error)})", hint=hint) from error
    print(address)


def build_workspace(entity: str, project: str, protocol: str, multiple: str) -> Any:
    """Build a workspace by encoding: curves of `protocol` by window, bars at `multiple`, bands by seed."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    look: dict[str, Any] = {
        "max_runs_to_show": MOST_RUNS,
        "groupby": wr.Config("encoding.name"),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
    }
    nats, by_position = f"eval/{protocol}/nats", "eval/positions/nats-by-position"
    panels: Any = [
        wr.LinePlot(title=f"{protocol}: nats per token by window", x=WINDOW, y=[nats], log_x=True, **look),
        wr.LinePlot(title="nats per token by position", x=POSITION, y=[by_position], log_x=True, **look),
        wr.BarPlot(title=f"{protocol}: nats per token at {multiple}", metrics=[f"{nats}@{multiple}"], **look),
        wr.BarPlot(title=f"{protocol}: nats per token at 1x", metrics=[f"{nats}@1x"], **look),
        wr.LinePlot(title="training: loss", x="train/tokens", y=["train/loss"], **look),
    ]
    section = ws.Section(name="Loss by encoding", panels=panels, is_open=True)
    shown = ws.WorkspaceSettings(max_runs=MOST_RUNS)
    return ws.Workspace(entity=entity, project=project, name=NAME, sections=[section], settings=shown)

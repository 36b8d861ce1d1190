"""`experiment=tuning` and `train.lr=tuned`: rates judged on validation documents by seeds of their own."""

import re

import pytest
import tiny
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

import posenc as px
from posenc.tracking import curves_of, summary


@pytest.fixture
def words(place, corpus):
    return [*tiny.TINY, f"data.paths={corpus}", "train.tokens=1024"]


def without(key, words):
    return [word for word in words if word.split("=")[0] != key]


def test_the_best_rate_on_validation_documents_is_read(words, posenc):
    tuning = without("eval.lengths", words)
    for rate in ("1e-5", "3e-3", "3.0"):  # jobs of the preset's sweep; the highest may diverge
        one = ("experiment=tuning", "encoding=rope", "seed=100", f"train.lr={rate}", "hydra.mode=RUN")
        assert posenc("train", *one, *tuning).code in (0, 1)
    losses = {}
    for run in px.load_runs("runs/tuning"):
        assert run.seed == 100 and {record["split"] for record in run.records} <= {"validation"}
        if run.records:
            losses[run.config["train"]["lr"]] = run.records[0]["nats"]
    assert min(losses, key=lambda rate: losses[rate]) == 3e-3
    tuned = posenc("train", "encoding=rope", "train.lr=tuned", *words)
    assert tuned.code == 0, tuned.err
    (run,) = px.load_runs("runs/default")
    assert "learning rate tuned" in " ".join(tuned.out.split())
    assert run.config["train"]["lr"] == 3e-3
    assert "on validation documents, seeds 100" in run.config["train"]["tuned"]
    other = posenc("train", "encoding=alibi", "train.lr=1e-3", *words)
    assert other.code == 0, other.err
    full = " ".join(posenc("compare", "runs/default", "--full").out.split())
    assert "learning rate of rope tuned" in full and "rope: train.lr=0.003 is tuned: best of" in full
    again = posenc("train", "encoding=rope", "train.lr=3e-3", *words)  # the same run, however it was chosen
    assert again.code == 0 and "already finished" in again.err

    for change, says in (
        ("seed=100", "the rate was chosen by this seed"),
        ("encoding=alibi", "0 rates were tried with these settings"),
        ("train.tokens=2048", "posenc train -m experiment=tuning"),
        ("train.lr=fast", "a number above 0, or tuned"),
    ):
        given = without(change.split("=")[0], ["encoding=rope", "train.lr=tuned", *words])
        refused = posenc("train", *given, change)
        assert refused.code == 2 and says in refused.err, refused.err


def test_the_wandb_sweep_of_the_page_trains_and_has_its_metric(words, posenc):
    """What an agent of W&B makes of it, without W&B's server."""
    page = (tiny.ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    sweep = yaml.safe_load(found[1])
    values = {"train.lr": {"value": 0.00123}, "optim.weight_decay": {"value": 0.0}}
    assert values.keys() == sweep["parameters"].keys()
    given = create_sweep_command_args({"args": values})["args_no_hyphens"]
    command = " ".join(sweep["command"]).replace("${args_no_hyphens}", " ".join(given))
    program, *arguments = command.split()
    done = posenc(*arguments, *without("eval.lengths", words), "tracking.mode=offline")
    assert program == "posenc" and done.code == 0, done.err
    (run,) = px.load_runs("runs/tuning")
    assert (run.config["train"]["lr"], run.config["optim"]["weight_decay"]) == (0.00123, 0.0)
    logged = summary(curves_of(run.records, run.config))
    (own,) = [r for r in run.records if r["protocol"] == "fixed-target"]
    assert logged[sweep["metric"]["name"]] == own["nats"] and own["split"] == "validation"

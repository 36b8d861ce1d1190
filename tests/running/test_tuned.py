"""`experiment=tuning` and `train.lr=tuned`: rates judged on validation documents by seeds of their own."""

import re
import shutil
from dataclasses import replace

import pytest
import tiny
import yaml
from in_process import called_in

import posenc as px
from posenc.running import tuned_rate
from posenc.running.tuned_rate import Trials, stored_validation_loss
from posenc.tracking.curves import curve_points, summary_of
from posenc.training import device

SEED = 100  # of experiment=tuning
BEST = 3e-3
RATES = ("1e-5", "3e-3", "3.0")  # the highest may diverge


@pytest.fixture
def words(working_folder, corpus):
    return [*tiny.TINY, f"data.paths={corpus}", "train.tokens=1024"]


def without(key, words):
    return [word for word in words if word.split("=")[0] != key]


@pytest.fixture(scope="module")
def tuned_runs(tmp_path_factory, corpus, shared_cache):
    """The `runs` folder of rope at three rates and of rope at the best of them, trained once. Copy it."""
    folder = tmp_path_factory.mktemp("tuned")
    words = [*tiny.TINY, f"data.paths={corpus}", "train.tokens=1024"]
    for rate in RATES:  # jobs of the preset's sweep
        job = ("experiment=tuning", "encoding=rope", f"seed={SEED}", f"train.lr={rate}", "hydra.mode=RUN")
        result = called_in(folder, shared_cache, "train", *job, *without("eval.lengths", words))
        assert result.code in (0, 1), result.err
    result = called_in(folder, shared_cache, "train", "encoding=rope", "train.lr=tuned", *words)
    assert result.code == 0, result.err
    return folder / "runs"


@pytest.fixture
def tuned(tuned_runs, working_folder):
    """A copy of those runs below the working folder."""
    shutil.copytree(tuned_runs, working_folder / "runs")


def run_of_default():
    (run,) = px.load_runs("runs/default")
    return run


def test_rates_are_judged_on_validation_documents_by_a_seed_of_their_own(tuned):
    losses = {}
    for run in px.load_runs("runs/tuning"):
        assert run.seed == SEED
        assert {record["split"] for record in run.records} <= {"validation"}
        loss = stored_validation_loss(run)
        if loss is not None:
            losses[run.config["train"]["lr"]] = loss
    assert min(losses, key=lambda rate: losses[rate]) == BEST


@pytest.mark.parametrize(
    "change",
    [{"fingerprint": "f" * 64}, {"checkpoint_step": 1}, {"precision": "bf16"}, {"extend": {"name": "pi"}}],
)
def test_a_loss_of_another_text_or_checkpoint_does_not_choose_a_rate(tuned, change):
    (run,) = px.load_runs("runs/tuning", where=[f"train.lr={BEST}"])
    loss = stored_validation_loss(run)
    (record,) = [record for record in run.records if record["protocol"] == "fixed-target"]
    better = {**record, "nats": loss / 2, **change}
    assert stored_validation_loss(replace(run, records=[better, *run.records])) == loss
    assert stored_validation_loss(replace(run, records=[better])) is None


def trials_of(losses):
    """Return the trials of {rate: {seed: loss}}."""
    trials = Trials()
    for rate, by_seed in losses.items():
        for seed, loss in by_seed.items():
            trials.add(rate, seed, loss)
    return trials


def test_one_lucky_seed_does_not_beat_the_mean_of_three():
    trials = trials_of(
        {1e-3: {100: 2.1, 101: 2.0, 102: 2.2}, 2e-3: {100: 2.2, 101: 2.1, 102: 2.3}, 4e-3: {101: 1.9}}
    )
    assert trials.best == 1e-3
    assert trials.missing == "0.004 lacks seeds 100 102"


def test_rates_that_share_no_seed_are_not_compared(tuned, words, posenc, monkeypatch):
    apart = trials_of({1e-3: {100: 2.1}, 2e-3: {101: 2.0}})
    monkeypatch.setattr(tuned_rate, "_trials_of", lambda *_: apart)
    refused = posenc("train", "encoding=rope", "train.lr=tuned", *words)
    assert refused.code == 2
    assert "0.001 lacks seed 101, 0.002 lacks seed 100" in " ".join(refused.err.split())
    assert "seed=100,101" in refused.err


def test_the_best_rate_is_trained_with(tuned):
    assert run_of_default().config["train"]["lr"] == BEST


def test_the_run_says_how_its_rate_was_chosen(tuned):
    assert "on validation documents, seeds 100" in run_of_default().config["train"]["tuned"]


def test_its_table_says_that_the_rate_is_tuned(tuned, posenc):
    assert "learning rate tuned" in " ".join(posenc("compare", "runs/default", "--full").out.split())


def test_a_comparison_says_which_rows_are_tuned(tuned, words, posenc):
    assert posenc("train", "encoding=alibi", "train.lr=1e-3", *words).code == 0
    full = " ".join(posenc("compare", "runs/default", "--full").out.split())
    assert "learning rate of rope tuned" in full
    assert "rope: train.lr=0.003 is tuned: best of" in full


def test_it_is_the_run_of_that_rate_however_it_was_chosen(tuned, words, posenc):
    again = posenc("train", "encoding=rope", f"train.lr={BEST}", *words)
    assert "already finished" in again.err


@pytest.fixture
def auto_is_bf16(monkeypatch):
    """Make `train.precision=auto` the precision that no rate was tried in."""
    monkeypatch.setattr(device, "has_hardware_bf16", lambda _: True)


def test_auto_takes_the_precision_that_rates_were_tried_in(tuned, words, posenc, auto_is_bf16):
    overrides = without("train.precision", words)
    trained = posenc("train", "encoding=rope", "train.lr=tuned", "train.precision=auto", *overrides)
    assert "auto is bf16 here; the rates were tried in fp32, and this run is trained so" in trained.err
    assert f"already finished: {run_of_default().path}" in trained.err


def test_rates_of_another_precision_than_the_named_one_are_not_taken(tuned, words, posenc):
    overrides = without("train.precision", words)
    refused = posenc("train", "encoding=rope", "train.lr=tuned", "train.precision=bf16", *overrides)
    assert refused.code == 2
    assert "0 rates were tried with these settings" in refused.err


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("seed=100", "the rate was chosen by this seed"),
        ("encoding=alibi", "0 rates were tried with these settings"),
        ("train.tokens=2048", "posenc train -m experiment=tuning"),
        ("train.lr=fast", "tuned or a number above 0"),
    ],
)
def test_what_was_not_tuned_is_refused(tuned, words, posenc, change, problem):
    overrides = without(change.split("=")[0], ["encoding=rope", "train.lr=tuned", *words])
    refused = posenc("train", *overrides, change)
    assert refused.code == 2
    assert problem in refused.err


@pytest.mark.slow
def test_the_wandb_sweep_of_the_page_trains_and_has_its_metric(words, posenc):
    """What an agent of W&B makes of it, without W&B's server."""
    # imported here, since it takes a second in every worker
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    page = (tiny.ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    sweep = yaml.safe_load(block[1])
    values = {"train.lr": {"value": 0.00123}, "optim.weight_decay": {"value": 0.0}}
    assert values.keys() == sweep["parameters"].keys()
    arguments_of_agent = create_sweep_command_args({"args": values})["args_no_hyphens"]
    command = " ".join(sweep["command"]).replace("${args_no_hyphens}", " ".join(arguments_of_agent))
    program, *arguments = command.split()
    assert program == "posenc"
    done = posenc(*arguments, *without("eval.lengths", words), "tracking.mode=offline")
    assert done.code == 0, done.err
    (run,) = px.load_runs("runs/tuning")
    assert run.config["train"]["lr"] == 0.00123
    assert run.config["optim"]["weight_decay"] == 0.0
    logged = summary_of(curve_points(run.records, run.config))
    assert logged[sweep["metric"]["name"]] == stored_validation_loss(run)

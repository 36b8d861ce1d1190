"""MFU: what it counts, and where a training tells it."""

import pytest
from fake_runs import only_run, read_json

from posenc.data import Stage
from posenc.running.utilization import Utilization, mfu_text

PEAK = 1e9  # FLOPs a second of the only device
# of tiny.TINY
WIDTH = 32
LAYERS = 2
LENGTH = 16


@pytest.fixture
def growing():
    """A training whose last quarter of the updates has longer windows, which cost twice as much a token."""
    stages = [Stage(last_step=30, length=8), Stage(last_step=40, length=16)]
    return Utilization(precision="bf16", stages=stages, flops_a_token={8: 100, 16: 200}, peak=1000.0)


@pytest.mark.parametrize(("step", "mfu"), [(1, 0.1), (30, 0.1), (31, 0.2), (40, 0.2)])
def test_an_update_counts_the_flops_of_its_windows(growing, step, mfu):
    assert growing.at(step, tokens_per_second=1.0) == pytest.approx(mfu)


def test_the_whole_training_counts_the_mean_over_its_updates(growing):
    assert growing.of_all(tokens_per_second=2.0) == pytest.approx(2 * 125 / 1000)


def test_without_a_peak_there_is_no_mfu():
    stages = [Stage(last_step=1, length=8)]
    unknown = Utilization(precision="bf16", stages=stages, flops_a_token={8: 100}, peak=None)
    assert unknown.at(1, tokens_per_second=1.0) is None
    assert unknown.of_all(tokens_per_second=1.0) is None


def test_the_precision_says_which_peak():
    assert mfu_text(0.414, "bf16") == "41% MFU (bf16)"


def test_on_a_cpu_results_have_no_mfu(trained_once):
    results = read_json(only_run(trained_once) / "results.json")
    assert results["run"]["mfu"] is None


def test_on_a_cpu_the_progress_has_tokens_a_second_alone(trained_once):
    progress = (trained_once.parent / "err.txt").read_text()
    assert " tokens/s  " in progress
    assert "MFU" not in progress


@pytest.fixture
def on_a_known_device(train, working_folder, monkeypatch):
    """A training on a device whose peak is known: its results, and what it printed on stderr."""
    monkeypatch.setattr("posenc.running.utilization.peak_flops", lambda device, precision: PEAK)
    result = train("encoding=rope", "eval.protocols=[fixed-target]")
    assert result.code == 0, result.err
    return read_json(only_run(working_folder / "runs") / "results.json"), result.err


def test_results_have_the_share_of_the_peak(on_a_known_device):
    facts = on_a_known_device[0]["run"]
    weights = facts["parameters"]["total"] - 5 * WIDTH  # the norms' vectors multiply no matrix
    flops = 6 * weights + 12 * LAYERS * WIDTH * LENGTH  # PaLM, appendix B
    assert facts["mfu"] == pytest.approx(flops * facts["tokens_per_second"] / PEAK, rel=0.01)


def test_the_progress_line_has_it_too(on_a_known_device):
    assert "% MFU (fp32)" in on_a_known_device[1]

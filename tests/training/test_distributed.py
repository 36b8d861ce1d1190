"""One run by several processes of torchrun: the same batches and numbers, one that writes and speaks."""

import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torchrun_worker

# float32; the sums over a batch are added in another order.
NATS = 1e-5
LIMIT = 300  # seconds, against hangs


def reports_of(count, what, folder, corpus):
    """Have `count` processes work in a folder; return what each has seen."""
    folder.mkdir()
    launcher = ("--standalone", f"--nproc-per-node={count}", torchrun_worker.__file__)
    words = (*launcher, what, str(folder), str(corpus))
    process = tiny.start(*words, cwd=folder, module="torch.distributed.run")
    try:
        _, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.terminate()  # asked to end: killed, its processes would outlive it
        raise
    assert process.returncode == 0, err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


@pytest.fixture(
    params=[2, pytest.param(4, marks=pytest.mark.slow)],  # four have unequal shares
    scope="module",
)
def trainings(request, tmp_path_factory, corpus, shared_cache):
    """A training by several processes, and the same one by this process alone."""
    root = tmp_path_factory.mktemp("trainings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSENC_CACHE", str(shared_cache))
        folder = root / "several"
        reports = reports_of(request.param, "training", folder, corpus)
        alone, arrays_alone = torchrun_worker.trained(torchrun_worker.tokens_of(corpus), root / "one")
    arrays = [np.load(folder / f"{rank}.npz") for rank in range(request.param)]
    return SimpleNamespace(
        folder=folder, reports=reports, arrays=arrays, alone=alone, arrays_alone=arrays_alone
    )


@pytest.mark.parametrize("name", ["inputs", "targets"])
def test_their_batches_are_those_of_one_process_cut_by_rank(trainings, name):
    together = np.concatenate([arrays[name] for arrays in trainings.arrays], axis=1)
    assert np.array_equal(together, trainings.arrays_alone[name])


def test_each_has_the_positions_of_one_process(trainings):
    assert all(np.array_equal(arrays["pos"], trainings.arrays_alone["pos"]) for arrays in trainings.arrays)


def test_all_end_with_the_same_weights(trainings):
    assert len({report["weights"] for report in trainings.reports}) == 1


def test_each_logs_the_losses_and_norms_of_one_process(trainings):
    for report in trainings.reports:
        assert report["losses"] == pytest.approx(trainings.alone["losses"], abs=NATS, rel=0)
        assert report["norms"] == pytest.approx(trainings.alone["norms"], rel=1e-4)


def test_one_of_them_writes_checkpoints(trainings):
    assert [path.name for path in (trainings.folder / "checkpoints").iterdir()] == ["step-00000030"]


# --- Commands


@pytest.fixture(scope="module")
def two(tmp_path_factory, corpus, shared_cache):
    """The reports of two processes that ran commands together, and the folder they worked in."""
    folder = tmp_path_factory.mktemp("commands") / "two"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSENC_CACHE", str(shared_cache))
        first, second = reports_of(2, "all", folder, corpus)
    return SimpleNamespace(first=first, second=second, folder=folder)


def run_in(folder):
    (run,) = (folder / "runs/default").iterdir()
    return run


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "eval"])
def test_the_first_process_speaks_and_the_second_is_silent(two, command):
    assert two.first[command]["code"] == 0, two.first[command]["err"]
    assert two.second[command] == {"code": 0, "out": "", "err": ""}


@pytest.mark.slow
def test_the_table_of_two_processes_is_that_of_one(two, train):
    alone = train("encoding=rope", "positions=randomized")
    assert two.first["train"]["out"] == alone.out
    assert two.first["train"]["err"].count("2 processes") == 1
    assert "rank" not in two.first["train"]["err"]


@pytest.mark.slow
def test_the_run_of_two_processes_is_that_of_one(two, train, working_folder):
    assert train("encoding=rope", "positions=randomized").code == 0
    together, alone = run_in(two.folder), run_in(working_folder)
    assert together.name == alone.name
    facts, facts_alone = (json.loads((run / "results.json").read_text())["run"] for run in (together, alone))
    assert facts.keys() == facts_alone.keys()
    assert facts["settings_hash"] == facts_alone["settings_hash"]
    assert facts["final_loss"] == pytest.approx(facts_alone["final_loss"], abs=NATS)


@pytest.mark.slow
def test_a_run_of_two_processes_is_written_once(two):
    run = run_in(two.folder)
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [10, 20, 30, 40]
    status = json.loads((run / "status.json").read_text())
    assert status["status"] == "finished"
    assert status["processes"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "message"),
    [("sweep", "one torchrun for each run"), ("many", "2 processes share batches of 1 windows")],
)
def test_each_process_says_what_is_wrong(two, command, message):
    for report in (two.first[command], two.second[command]):
        assert report["code"] == 2
        assert report["out"] == ""
        assert message in report["err"]
    assert all(line.startswith("process 1: ") for line in two.second[command]["err"].splitlines())


@pytest.mark.slow
def test_a_process_that_fails_ends_the_others(two):
    assert "another process of this run has failed or was killed" in two.first["failing"][0]
    assert two.second["failing"] == [1, "process 1: error: only here\n"]

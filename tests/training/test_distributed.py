"""One run by several processes of torchrun: the same batches and numbers, one that writes and speaks."""

import json
import subprocess

import numpy as np
import pytest
import tiny
import torchrun_worker

# float32; the sums over a batch are added in another order.
NATS = 1e-5
LIMIT = 300  # seconds, against hangs


def worked(count, what, folder, corpus):
    folder.mkdir()
    launcher = ("--standalone", f"--nproc-per-node={count}", torchrun_worker.__file__)
    words = (*launcher, what, str(folder), str(corpus))
    process = tiny.start(*words, cwd=folder, module="torch.distributed.run")
    try:
        result = tiny.Result(0, *process.communicate(timeout=LIMIT))
    except subprocess.TimeoutExpired:
        process.terminate()  # asked to end: killed, its processes would outlive it
        raise
    assert process.returncode == 0, result.err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])  # four have unequal shares
def test_several_processes_train_as_one(store, place, corpus, count):
    """The batches of one process bit for bit, cut by rank; the same weights for all; losses within NATS."""
    folder = place / "several"
    reports = worked(count, "training", folder, corpus)
    said, seen = torchrun_worker.trained(store, place / "one")
    parts = [np.load(folder / f"{rank}.npz") for rank in range(len(reports))]
    for name in ("inputs", "targets"):
        assert np.array_equal(np.concatenate([part[name] for part in parts], axis=1), seen[name])
    assert all(np.array_equal(part["pos"], seen["pos"]) for part in parts)
    assert {report["weights"] for report in reports} == {reports[0]["weights"]}
    for report in reports:
        assert report["losses"] == pytest.approx(said["losses"], abs=NATS, rel=0)
        assert report["norms"] == pytest.approx(said["norms"], rel=1e-4)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000030"]


@pytest.mark.slow
def test_commands_of_two_processes_are_those_of_one(train, place, corpus):
    first, second = worked(2, "all", place / "two", corpus)

    # the run: its name, its records and its table are those of one process, written and said once
    assert first["train"]["code"] == second["train"]["code"] == 0, first["train"]["err"]
    assert first["eval"]["code"] == second["eval"]["code"] == 0, first["eval"]["err"]
    assert "".join(second[what][stream] for what in ("train", "eval") for stream in ("out", "err")) == ""
    one = train("encoding=rope", "positions=randomized")
    assert first["train"]["out"] == one.out
    assert first["train"]["err"].count("2 processes") == 1 and "rank" not in first["train"]["err"]
    (run,), (run_of_one,) = (list((p / "runs/default").iterdir()) for p in (place / "two", place))
    assert run.name == run_of_one.name
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [10, 20, 30, 40]
    status = json.loads((run / "status.json").read_text())
    assert (status["status"], status["processes"]) == ("finished", 2)
    facts, facts_of_one = (json.loads((r / "results.json").read_text())["run"] for r in (run, run_of_one))
    assert facts.keys() == facts_of_one.keys() and facts["settings_hash"] == facts_of_one["settings_hash"]
    assert facts["final_loss"] == pytest.approx(facts_of_one["final_loss"], abs=NATS)

    # what is wrong is said by each, before anything is written
    wrong = {"sweep": "one torchrun for each run", "many": "2 processes share batches of 1 windows"}
    for what, words in wrong.items():
        for said in (first[what], second[what]):
            assert (said["code"], said["out"]) == (2, "") and words in said["err"], said
        assert all(line.startswith("process 1: ") for line in second[what]["err"].splitlines())
    assert len(list((place / "two/runs/default").iterdir())) == 1
    assert "another process of this run has failed or was killed" in first["failing"][0]
    assert second["failing"] == [1, "process 1: error: only here\n"]

"""One number from end to end: corpus, batches, initial values, model, optimizer, and what is logged."""

import json

import pytest
from fake_runs import only_run

STEPS = 20
# Nats per token, the mean of steps 11 to 20, as logged at step 20. Another number means that the same
# settings make another run: bring the number back, or raise what names a run (a revision, the schema).
LOSS = {"rope": 3.986226, "alibi": 3.979528}


@pytest.mark.parametrize("encoding", LOSS)
def test_the_loss_after_twenty_steps(train, working_folder, encoding):
    result = train(f"encoding={encoding}", f"train.tokens={STEPS * 128}", "eval.lengths=[1x]")
    assert result.code == 0, result.err
    lines = (only_run(working_folder / "runs") / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["step"] == STEPS
    assert last["loss"] == pytest.approx(LOSS[encoding], abs=2e-4)  # other processors round sums otherwise


def test_a_training_logs_the_loss_on_validation_documents(trained_once):
    lines = (only_run(trained_once) / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    validated = {line["step"]: line["validation_loss"] for line in logged if "validation_loss" in line}
    assert list(validated) == [30, 40]  # of 40 steps, each tenth of which is logged
    assert 0 < validated[40] < validated[30]

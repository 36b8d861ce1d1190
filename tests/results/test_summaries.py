"""The summary of a run: its progress, its losses, and the command that continues it."""

import json

import pytest
import yaml
from fake_runs import SETTINGS, TOKENS, T, compared, edit_json, record, run_facts, write_run

from posenc.core.atomic_files import write_json_atomic
from posenc.results.runs import load_run, resume_command
from posenc.results.summary import headline_losses, summarize


# --- A run that finished
@pytest.fixture
def finished(tmp_path):
    """A run with two sets of targets, which refused to be measured at 8T."""
    refused = record(8 * T, 0.0, note="refused: beyond=refuse")
    of_other_targets = [record(window, 2.2, targets_hash="b" * 16) for window in (T // 4, T // 2, T)]
    records = [record(T // 2, 1.3), record(T, 1.2), refused, *of_other_targets]
    return load_run(write_run(tmp_path, records=records))


def test_the_losses_of_a_summary_are_those_of_the_table(finished):
    cells = compared(finished.path).rows[0].cells
    losses_of_table = {cell.multiple: cell.mean for cell in cells if cell.mean is not None}
    assert headline_losses(finished) == pytest.approx(losses_of_table)
    assert summarize(finished).nats_at_train_length == pytest.approx(1.2)


def test_a_summary_says_which_run_it_is(finished):
    summary = summarize(finished)
    assert summary.status == "finished"
    assert summary.encoding == "rope"
    assert summary.model == "nano"
    assert summary.experiment == finished.path.parent.name
    assert summary.context_length == T


def test_a_finished_run_has_no_time_left(finished):
    summary = summarize(finished)
    assert summary.tokens == TOKENS
    assert summary.seconds_left is None


# --- A run without results yet
@pytest.fixture
def running(tmp_path):
    """A run directory whose log has two lines, and a third that is being written."""
    run = write_run(tmp_path, "alibi", status="running", results=False)
    lines = []
    for step in (1, 2):
        line = {"step": step, "tokens": step * 1000, "loss": 3 / step, "tokens_per_second": 500.0}
        lines.append(json.dumps(line))
    lines.append('{"cut')
    (run / "metrics.jsonl").write_text("\n".join(lines))
    return run


def test_a_running_run_has_the_progress_of_its_log(running):
    summary = summarize(load_run(running))
    assert summary.status == "running"
    assert summary.tokens == 2000
    assert summary.tokens_asked == TOKENS
    assert summary.training_loss == 1.5
    assert summary.seconds_left == (TOKENS - 2000) / 500


def test_a_running_run_need_not_be_continued(running):
    assert summarize(load_run(running)).continue_ is None


@pytest.mark.parametrize(
    ("status", "command"),
    [
        ("interrupted", "posenc train encoding=alibi seed=0"),
        ("diverged", "posenc train encoding=alibi seed=0 --retry"),
    ],
)
def test_a_stopped_run_has_the_command_that_continues_it(running, status, command):
    edit_json(running / "status.json", status=status)
    assert summarize(load_run(running)).continue_ == command


def test_a_command_is_quoted_for_the_shell(running):
    edit_json(running / "status.json", status="diverged", overrides=["data.paths=a b"])
    assert resume_command(load_run(running)) == "posenc train 'data.paths=a b'"


def test_without_its_overrides_a_run_has_no_command(running):
    edit_json(running / "status.json", status="diverged", overrides=None)
    assert resume_command(load_run(running)) is None


# --- A model that posenc did not train
@pytest.fixture(params=[False, True], ids=["without results", "with results"])
def given_model(request, tmp_path):
    """Return the run of a model that was given in bf16, before and after it was measured on sympy."""
    tree = {key: SETTINGS[key] for key in ("schema_version", "data", "tokenizer", "context_length", "eval")}
    tree |= {"encoding": {"name": "mine"}, "seed": 0, "experiment_name": "subjects", "precision": "bf16"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    if request.param:
        facts = run_facts("mine", precision="bf16")
        del facts["corpus"]  # what it was trained on is not known
        results = {"schema_version": 2, "run": facts, "records": [record(T, 1.2)]}
        write_json_atomic(tmp_path / "results.json", results)
    return load_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("corpus", "sympy"), ("context_length", T), ("precision", "bf16")]
)
def test_the_summary_of_a_given_model_has_what_its_settings_say(given_model, name, value):
    assert getattr(summarize(given_model), name) == value

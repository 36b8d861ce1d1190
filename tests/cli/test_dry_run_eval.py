"""`posenc eval --dry-run`: what would be measured; nothing is tokenised, measured or written."""

import os
import re

import hf_models
import pytest
from fake_runs import stamps

from posenc.evaluation import passes
from posenc.results.runs import load_run
from posenc.running import machine_rates

CELL = re.compile(r"^([\w-]+(?: \+\w+)?) +(\d+) \([\d.]+x\) +([\d,]+) +([\d,]+|-) +\S.*\b(\w+)$", re.M)


@pytest.fixture(autouse=True)
def quick_dry_runs(monkeypatch):
    """Measure rates for 0.05 s, and keep this process on the network: a dry run would take its own off."""
    monkeypatch.setenv("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", ""))
    monkeypatch.setattr("posenc.cli.dry_run_eval.go_offline", lambda: None)
    monkeypatch.setattr(machine_rates, "CALIBRATION_SECONDS", 0.01)


@pytest.fixture
def measure(posenc, run_copy):
    """`posenc eval` of a copy of the trained run."""
    return lambda *overrides: posenc("eval", f"run={run_copy}", *overrides)


def cells_of(result):
    """Return (targets, passes, state) by protocol and window, as texts."""
    assert result.code == 0, result
    cells = {}
    for name, window, targets, n_passes, state in CELL.findall(result.out):
        cells[name, int(window)] = (targets, n_passes, state)
    return cells


def test_what_is_stored_is_not_measured_again(measure):
    result = measure("--dry-run")
    assert {state for _, _, state in cells_of(result).values()} == {"stored"}
    assert result.out.startswith("About 0 s for 1 job on cpu; nothing was measured.")


def test_a_dry_run_changes_nothing(measure, working_folder):
    before = stamps(working_folder)
    assert measure("eval.lengths=[1x,2x]", "eval.max_targets=100", "--dry-run").code == 0
    assert stamps(working_folder) == before


def test_targets_and_passes_are_those_of_the_evaluation(measure, run_copy, monkeypatch):
    options = ("eval.lengths=[1x,2x,3x]", "eval.protocols=[fixed-target]", "eval.batch_tokens=256")
    planned = cells_of(measure(*options, "--dry-run"))
    counted = []
    forward = passes.forward

    def counting_forward(context, tokens, *rest):
        counted.append(tokens.shape[1] - 1)
        return forward(context, tokens, *rest)

    monkeypatch.setattr(passes, "forward", counting_forward)
    assert measure(*options).code == 0
    measured = {record["window"]: record for record in load_run(run_copy).records if record["window"] == 48}
    targets, n_passes, _ = planned["fixed-target", 48]
    assert int(targets.replace(",", "")) == measured[48]["targets"]
    assert int(n_passes) == counted.count(48)


def test_questions_between_the_values_of_needle_are_no_targets(measure, run_copy):
    options = ("eval.lengths=[1x,8x]", "eval.protocols=[needle]", "eval.needle.windows=2")
    planned = cells_of(measure(*options, "--dry-run"))
    assert measure(*options).code == 0
    (measured,) = (r for r in load_run(run_copy).records if r["protocol"] == "needle" and r["targets"])
    assert planned["needle", measured["window"]][0] == f"{measured['targets']:,}"


def test_small_steps_are_not_free_beside_whole_windows(measure):
    """They score the same targets, and make many more passes."""
    protocols = "eval.protocols=[nonoverlapping,sliding]"
    cells = cells_of(measure("eval.lengths=[1x,3x]", protocols, "--dry-run"))
    assert cells["sliding", 48][2] == "measure"
    assert cells["nonoverlapping", 48][2] == "measure"


@pytest.mark.parametrize("protocol", ["memory", "dispersion"])
def test_passes_beside_the_windows_add_no_targets(measure, protocol):
    protocols = f"eval.protocols=[fixed-target,{protocol}]"
    cells = cells_of(measure("eval.lengths=[1x,3x]", protocols, "eval.batch_tokens=256", "--dry-run"))
    of_protocol = cells[protocol, 48]
    of_fixed_target = cells["fixed-target", 48]
    assert of_protocol[0] == of_fixed_target[0]
    assert int(of_protocol[1]) > int(of_fixed_target[1])


def test_passes_that_two_protocols_need_are_counted_once(measure):
    cells = cells_of(
        measure("eval.max_targets=300", "eval.protocols=[nonoverlapping,positions]", "--dry-run")
    )
    assert cells["positions", 64][1:] == ("-", "shared")
    assert cells["nonoverlapping", 64][2] == "measure"


def test_an_extension_has_rows_of_its_own_beside_the_crop_line(measure):
    cells = cells_of(measure("extend=yarn", "eval.protocols=[fixed-target]", "--dry-run"))
    assert cells["fixed-target", 16][2] == "stored"
    assert cells["fixed-target +yarn", 64][2] == "measure"


def test_candidates_for_knobs_are_counted(measure):
    result = measure("extend=yarn", "extend.tune=true", "extend.tries=5", "--dry-run")
    assert "tuning     up to 5 candidates" in result.out


def test_the_text_and_the_memory_are_named(measure, run_copy):
    lines = measure("--dry-run").out.splitlines()
    assert f"run        {run_copy}, step 40" in lines
    assert any(line.startswith("text       trained on files") for line in lines)
    assert any(re.fullmatch(r"memory     about [\d.,]+ [MG]B of [\d.,]+ [MG]B free", line) for line in lines)


def test_several_jobs_have_a_line_each(measure):
    result = measure("-m", "extend=yarn,pi", "--dry-run")
    assert result.code == 0, result.err
    assert re.search(r"rope-\S+ +yarn +\d+ of \d+ ", result.out)
    assert re.search(r"rope-\S+ +pi +\d+ of \d+ ", result.out)
    # A model this small is measured in no time, but each of the jobs takes 5 s to begin.
    seconds = re.match(r"About (\d+) s for 2 jobs ", result.out)
    assert seconds is not None
    assert int(seconds[1]) >= 10


@pytest.mark.parametrize("extensions", ["none,yarn,pi", "yarn,pi,none"])
def test_a_sweep_counts_what_several_jobs_share_once(measure, extensions):
    options = ("eval.lengths=[1x,2x]", "eval.protocols=[fixed-target]", "eval.max_targets=100")
    result = measure("-m", f"extend={extensions}", *options, "--dry-run")
    rows = re.findall(r"rope-\S+ +(\w+) +(\d of \d) ", result.out)
    # The model as trained comes first. Of the others T is known then: as trained, and extended.
    assert rows[0] == ("none", "2 of 2")
    assert sorted(rows[1:]) == [("pi", "1 of 3"), ("yarn", "1 of 3")]


def test_what_does_not_fit_ends_with_1(measure, monkeypatch):
    monkeypatch.setattr("posenc.running.room.free_memory", lambda: 1.0)
    assert measure("--dry-run").code == 1


def test_wrong_input_is_refused_as_by_an_evaluation(measure):
    result = measure("eval.protocols=[nothing]", "--dry-run")
    assert result.code == 2
    assert "eval.protocols" in result.err


def test_a_model_of_transformers_is_counted_too(posenc, corpus, tmp_path):
    text = b"".join(path.read_bytes() for path in sorted(corpus.iterdir()))
    folder = tmp_path / "gpt2"
    hf_models.save(hf_models.trained("gpt2", text, steps=1), folder, bos=False)
    settings = ("subject=hf", f"subject.path={folder}", f"context_length={hf_models.T}", "device=cpu")
    result = posenc("eval", *settings, "data=files", f"data.paths={corpus}", "eval.lengths=[1x]", "--dry-run")
    assert result.code == 0, result.err
    assert re.search(rf"^fixed-target +{hf_models.T} \(1x\) ", result.out, re.M)


def test_what_an_evaluation_of_a_checkpoint_stored_before_it_was_stopped_is_known(
    posenc, corpus, working_folder, tmp_path
):
    """Its tokens are in the cache then, and its directory is named by a digest that is known."""
    folder = hf_models.save(hf_models.random_model("llama", **hf_models.LLAMA), tmp_path / "llama")
    settings = ("subject=hf", f"subject.path={folder}", "device=cpu", "eval.max_targets=200")
    text = ("data=files", f"data.paths={corpus}")
    command = ("eval", *settings, *text, "eval.lengths=[1x,2x]")
    assert posenc(*command).code == 0
    (longest,) = working_folder.glob(f"runs/subjects/llama-*/records/fixed-target-W{2 * hf_models.T}-*")
    longest.unlink()
    states = {window: state for (_, window), (_, _, state) in cells_of(posenc(*command, "--dry-run")).items()}
    assert states == {hf_models.T: "stored", 2 * hf_models.T: "measure"}

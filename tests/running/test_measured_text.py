"""Text that is given for measuring alone: all of it is measured, and the screen says what it is."""

import re
import shutil
from types import SimpleNamespace

import pytest
import tiny
from fake_runs import read_json
from in_process import called_in

from posenc.running.measured_text import text_line

FIXED = ("eval.protocols=[fixed-target]", "eval.lengths=[1x,2x]")
OF_OTHER_SIGNS = "".join(chr(0x4E00 + 7 * i % 1280) for i in range(700))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, trained_once):
    """A copy of the trained run, and 20 other documents that are hard to read for it."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copytree(trained_once, folder / "runs")
    tiny.write(folder / "other", {f"{i:02d}.txt": f"{OF_OTHER_SIGNS[i:]}{i}" for i in range(20)})
    return folder


@pytest.fixture(scope="module")
def measure(folder, shared_cache):
    """Measure the run by these overrides."""
    (run,) = (folder / "runs" / "default").iterdir()

    def call(*overrides):
        return called_in(folder, shared_cache, "eval", f"run={run}", *FIXED, "data=files", *overrides)

    return call


@pytest.fixture(scope="module")
def whole(measure):
    result = measure("data.paths=other")
    assert result.code == 0, result.err
    return result


def test_all_documents_are_measured(whole):
    assert "20 test documents" in whole.out


def test_the_screen_says_what_it_was_trained_on_and_what_is_measured(whole, corpus, folder):
    assert (
        f"trained on files ({corpus}); measured on files ({folder / 'other'}): all 20 documents" in whole.err
    )


def test_a_loss_at_the_level_of_a_unigram_is_warned_of(whole):
    assert re.search(r"\d nats/byte is no better than the frequencies of the text's bytes", whole.err)


def test_a_test_share_of_one_is_all_of_it(measure, whole):
    result = measure("data.paths=other", "data.split.test=1.0")
    assert result.code == 0, result.err
    assert "all 20 documents" in result.err


def test_another_name_of_a_text_changes_nothing(measure):
    result = measure("data.paths=other", "data.name=mine")
    assert result.code == 0, result.err
    assert "all 20 documents" in result.err


# The last one is that of the YAML.
@pytest.mark.parametrize("choice", ["eval.split=test", "data.split.test=0.3", "data.split.test=0.2"])
def test_a_split_that_is_asked_for_stays(measure, choice):
    result = measure("data.paths=other", choice)
    assert result.code == 0, result.err
    assert ": all" not in result.err
    assert "test documents" in result.err


def test_of_its_own_text_the_held_out_part_is_measured(measure, corpus, folder):
    (run,) = (folder / "runs" / "default").iterdir()
    fingerprint = read_json(run / "results.json")["run"]["corpus"]["fingerprint"]
    result = measure(f"data.paths={corpus}")
    assert result.code == 0, result.err
    assert "measured on" not in result.err
    records = read_json(run / "results.json")["records"]
    assert {record["fingerprint"] for record in records if record["corpus"] == "files"} >= {fingerprint}


def test_a_part_of_its_own_text_keeps_its_split_and_says_what_was_trained_on(measure, corpus, folder):
    part = folder / "part"
    part.mkdir()
    for file in sorted(corpus.iterdir())[:40]:
        shutil.copy(file, part / f"again {file.name}")  # other names: other splits
    result = measure(f"data.paths={part}")
    assert result.code == 0, result.err
    assert ": all" not in result.err
    assert "were trained on: their loss is too low" in result.err


def test_a_test_share_of_one_of_its_own_text_is_refused(measure, corpus):
    result = measure(f"data.paths={corpus}", "data.split.test=1.0")
    assert result.code == 2
    assert "this run was trained on" in result.err


def test_a_part_of_a_text_for_another_model_says_how_to_measure_all_of_it(monkeypatch):
    monkeypatch.setattr("posenc.running.measured_text.is_measured_whole", lambda data: False)
    data = SimpleNamespace(name="files", parameters={"paths": "texts"})
    facts = SimpleNamespace(sizes={"test": range(20)})
    line = text_line(data, facts, "test", settings=None)
    end = "its 20 test documents (set data.split.test=1 to measure all of it)"
    assert line == f"measured on files (texts): {end}"


def test_a_table_calls_a_run_undertrained_that_cannot_read_the_text(whole):
    assert "Undertrained for this text: at T not below the frequencies of the text's tokens" in flat(
        whole.out
    )


def test_more_training_on_its_own_text_is_no_advice_for_another_one(whole):
    assert "train longer" not in whole.out


def flat(text):
    """Return a text without its line breaks."""
    return " ".join(text.split())

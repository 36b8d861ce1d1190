"""A run on lines NAME = VALUE: what it stores, and how it is asked for another kind of plant."""

import pytest
import tiny
from fake_runs import read_json
from in_process import called_in

T = 32
ARGUMENTS = (
    *tiny.TINY,
    f"context_length={T}",
    "data.paths=texts",
    "data.plant={kind:assignments,share:0.5,pairs:1,cue:1,alphabet:2,weight:1.0}",
    "eval.lengths=[1x,2x]",
    "eval.protocols=[recall]",
    "eval.recall={distances:[8],pairs:[1],windows:4,draw:0,kind:null}",
)


@pytest.fixture(scope="module")
def asked_for_both(tmp_path_factory, shared_cache):
    """The results of a run that was trained on lines, then asked for tokens."""
    folder = tmp_path_factory.mktemp("planted")
    text = "a word, b words, c and d\n" * 10
    tiny.write(folder / "texts", {f"{number:02}.txt": f"{number}\n{text}" for number in range(40)})
    trained = called_in(folder, shared_cache, "train", *ARGUMENTS)
    assert trained.code == 0, trained.err
    (run,) = (folder / "runs" / "default").iterdir()
    asked = called_in(folder, shared_cache, "eval", f"run={run}", "eval.recall.kind=tokens")
    assert asked.code == 0, asked.err
    return read_json(run / "results.json")


def test_a_run_names_the_kind_of_its_plant(asked_for_both):
    assert asked_for_both["run"]["corpus"]["plant"]["kind"] == "assignments"


def test_a_run_has_records_of_each_kind_that_it_was_asked_for(asked_for_both):
    kinds = {(record["window"], record["recall"]["kind"]) for record in asked_for_both["records"]}
    assert kinds == {(T, "assignments"), (2 * T, "assignments"), (T, "tokens"), (2 * T, "tokens")}


def test_records_of_two_kinds_have_different_targets(asked_for_both):
    hashes = {record["recall"]["kind"]: record["targets_hash"] for record in asked_for_both["records"]}
    assert hashes["assignments"] != hashes["tokens"]

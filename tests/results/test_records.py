"""Records: what a measurement becomes, what is refused, the files that hold them, and results.json."""

import json
import math
import re
from dataclasses import replace

import pytest
from fake_runs import (
    exact_records,
    needle_records,
    positions,
    read_json,
    recall_records,
    record,
    write_run,
)

from posenc.core.errors import RunError
from posenc.results.record_files import assemble_results, find_record, read_records, write_record
from posenc.results.record_making import DocumentSums, RecordContext, RecordKey, make_record
from posenc.results.records import check_record

# --- What a record says
KEY = RecordKey(
    protocol="fixed-target",
    window=128,
    fingerprint="f",
    split="test",
    targets_hash="h",
    checkpoint_step=3,
)
CONTEXT = RecordContext(corpus="c", train_length=64, seconds=0.5)


def record_of(sums=None, note=None):
    return make_record(KEY, CONTEXT, sums, note=note)


@pytest.fixture(scope="module")
def by_hand():
    """A record of three documents, the last one without targets: 40 nats, 20 targets, 50 bytes."""
    return record_of(DocumentSums([4, 2, 7], nats=[30.0, 10.0, 0.0], targets=[10, 10, 0], bytes=[40, 10, 0]))


def test_a_loss_is_the_sum_of_nats_over_the_sum_of_targets(by_hand):
    assert by_hand["nats"] == 2.0
    assert by_hand["ppl"] == pytest.approx(math.exp(2))
    assert by_hand["bpb"] == pytest.approx(40 / (math.log(2) * 50))


def test_targets_and_the_documents_that_have_some_are_counted(by_hand):
    assert by_hand["targets"] == 20
    assert by_hand["documents"] == 2


def test_the_window_is_told_as_a_multiple_of_the_training_length(by_hand):
    assert by_hand["multiple"] == 2.0


def test_documents_with_targets_are_listed_in_their_order(by_hand):
    assert by_hand["per_document"]["document"] == [2, 4]
    assert by_hand["per_document"]["nats"] == [10.0, 30.0]


def test_two_documents_have_no_interval(by_hand):
    assert by_hand["ci95"] is None


def test_forty_documents_have_an_interval_around_the_loss():
    low, high = record(64, 1.3)["ci95"]
    assert low < 1.3 < high


def test_a_record_passes_its_own_check(by_hand):
    assert check_record(json.dumps(by_hand).encode()) == by_hand


def test_a_perplexity_that_overflows_is_null():
    huge = record_of(DocumentSums([0], nats=[8000.0], targets=[10], bytes=[10]))
    assert huge["nats"] == 800.0
    assert huge["ppl"] is None
    assert huge["note"] is None


@pytest.mark.parametrize("field", ["nats", "bpb", "ppl", "per_document"])
def test_a_record_with_a_note_has_no_numbers(field):
    assert record_of(note="oom at 128 tokens")[field] is None


def test_a_loss_that_is_no_number_is_noted_as_diverged():
    diverged = record_of(DocumentSums([0, 1], nats=[1.0, math.nan], targets=[1, 1], bytes=[1, 1]))
    assert diverged["nats"] is None
    assert diverged["note"] == "diverged"
    assert diverged["targets"] == 0


# --- Records that are refused
SUMS = {"document": [0], "nats": [1.0], "targets": [1], "bytes": [1]}
SAME_DOCUMENT_TWICE = {"document": [0, 0], "nats": [1.0, 1.0], "targets": [1, 1], "bytes": [1, 1]}
CURVE = positions()["curve"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        pytest.param("window", "64", "window", id="window as text"),
        pytest.param("window", 0, "window", id="window of nothing"),
        pytest.param("nats", None, "null without a note", id="loss without a number"),
        pytest.param("nats", 1e200, "nats", id="loss beyond reason"),
        pytest.param("targets", -1, "targets", id="negative count"),
        pytest.param("checkpoint_step", True, "checkpoint_step", id="step as a boolean"),
        pytest.param("ci95", [1.0], "ci95", id="interval with one end"),
        pytest.param("extend", {}, "extend.name", id="extension without a name"),
        pytest.param("extend", {"name": "yarn", "tuned": [1]}, "tuned", id="tuned setting as a number"),
        pytest.param("per_document", {**SUMS, "targets": [0]}, "targets", id="document without targets"),
        pytest.param("per_document", {**SUMS, "nats": []}, "different lengths", id="sums not aligned"),
        pytest.param("per_document", SAME_DOCUMENT_TWICE, "twice", id="document twice"),
        pytest.param("curve", {**CURVE, "nats": [1.0]}, "different lengths", id="curve not aligned"),
        pytest.param("curve", {**CURVE, "edges": [*range(10, 0, -1)]}, "must rise", id="falling edges"),
    ],
)
def test_a_wrong_record_is_refused_by_the_name_of_its_field(field, value, message):
    content = json.dumps({**record(64, 1.0), field: value}).encode()
    with pytest.raises(ValueError, match=message):
        check_record(content)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("recall", {"correct": 101}),
        ("needle", {"correct": 17}),
        ("exact", {"right": 101}),
        ("exact", {"tokens_right": 1001}),
        ("exact", {"generated_right": 101}),
    ],
)
def test_no_more_can_be_right_than_were_asked(name, changed):
    makers = {
        "recall": recall_records({32: 50}),
        "needle": needle_records({1: [16, 16, 16]}),
        "exact": exact_records({1: 50}),
    }
    damaged = makers[name][-1]
    for key, count in changed.items():
        is_list = isinstance(damaged[name].get(key), list)
        damaged[name][key] = [count] * len(damaged[name][key]) if is_list else count
    with pytest.raises(ValueError, match="more are right than were asked"):
        check_record(json.dumps(damaged).encode())


# --- Files of records
@pytest.fixture(scope="module")
def different_records():
    """Records of which any two differ in one thing that tells measurements apart."""
    records = [record(64, 1.0), record(128, 1.0), record(128, 1.0, protocol="sliding", stride=8)]
    for changes in ({"targets_hash": "b"}, {"split": "validation"}, {"checkpoint_step": 1600}):
        records.append(record(128, 1.0, **changes))
    for factor in (2, 4):
        records.append(record(128, 1.0, extend={"name": "../y|arn", "factor": factor}))
    return records


@pytest.fixture
def written(tmp_path, different_records):
    """The paths of their files."""
    return {write_record(tmp_path, measurement) for measurement in different_records}


def test_every_measurement_has_a_file(tmp_path, written, different_records):
    assert len(written) == len(different_records)
    assert len(read_records(tmp_path)) == len(different_records)


def test_files_of_records_lie_in_one_folder_without_temporary_ones(tmp_path, written):
    assert set((tmp_path / "records").iterdir()) == written


def test_names_of_record_files_are_safe_on_every_system(written):
    for path in written:
        assert re.fullmatch(r"[A-Za-z0-9._+-]+", path.name)


def test_the_name_of_a_record_file_stays(tmp_path):
    """The finished measurements of older runs are found by it."""
    path = write_record(tmp_path, record(128, 1.0))
    assert path.name == "fixed-target-W128-step800-b590177a.json"


def test_a_record_is_found_by_its_key(tmp_path):
    measurement = record(128, 1.0)
    write_record(tmp_path, measurement)
    assert find_record(tmp_path, RecordKey.of(measurement)) == measurement


def test_where_nothing_is_written_no_record_is_found(tmp_path):
    assert find_record(tmp_path, RecordKey.of(record(128, 1.0))) is None


@pytest.mark.parametrize(
    "change", [{"window": 256}, {"split": "validation"}, {"stride": 8}, {"targets_hash": "b"}], ids=str
)
def test_a_record_of_another_key_is_not_found(tmp_path, change):
    measurement = record(128, 1.0)
    write_record(tmp_path, measurement)
    other_key = replace(RecordKey.of(measurement), **change)
    assert find_record(tmp_path, other_key) is None


@pytest.fixture
def damaged(tmp_path):
    """The path of a record's file that is cut."""
    path = write_record(tmp_path, record(128, 1.0))
    path.write_text(path.read_text()[:50])
    return path


def test_a_damaged_record_is_not_found(tmp_path, damaged):
    assert find_record(tmp_path, RecordKey.of(record(128, 1.0))) is None


def test_a_damaged_record_is_named_when_all_are_read(tmp_path, damaged):
    with pytest.raises(RunError, match=re.escape(damaged.name)):
        read_records(tmp_path)


# --- results.json
@pytest.fixture
def run(tmp_path):
    """A run whose records were not written in the order of their windows."""
    losses = [record(window, 1.0) for window in (512, 64, 32)]
    return write_run(tmp_path, records=[positions(), *losses])


def test_results_have_the_schema_and_the_run(run):
    results = read_json(run / "results.json")
    assert results["schema_version"] == 2
    assert results["run"]["encoding"] == {"name": "rope"}


def test_results_are_sorted_by_protocol_and_window(run):
    records = read_json(run / "results.json")["records"]
    assert [(measurement["protocol"], measurement["window"]) for measurement in records] == [
        ("fixed-target", 32),
        ("fixed-target", 64),
        ("fixed-target", 512),
        ("positions", 512),
    ]


def test_curves_have_a_file_of_their_own(run):
    (curve,) = read_json(run / "positions.json")["curves"]
    assert curve["protocol"] == "positions"
    assert curve["level"] == 1.2
    assert curve["documents"] == 40


def test_results_that_are_assembled_again_are_the_same_file(run):
    path = run / "results.json"
    content = path.read_bytes()
    assemble_results(run, read_json(path)["run"])
    assert path.read_bytes() == content


def test_results_without_records_have_an_empty_list(tmp_path):
    assemble_results(tmp_path, {"name": "x"})
    assert read_json(tmp_path / "results.json")["records"] == []

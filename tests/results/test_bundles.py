"""Bundles: the results of many runs in one file."""

import gzip
import json
from dataclasses import replace

import pytest
import tiny
from fake_runs import MULTIPLES, compared, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.bundles import SUFFIX, bundle_line, pack_bundle


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two seeds that finished and one that diverged."""
    root = tmp_path_factory.mktemp("bundle_line") / "runs"
    for seed in range(2):
        losses = {multiple: 1.2 + multiple / 10 + seed / 70 for multiple in MULTIPLES}
        write_run(root, seed=seed, losses=losses)
    write_run(root, seed=2, status="diverged", reason="nan", results=False)
    return root


@pytest.fixture(scope="module")
def runs(root):
    return load_runs([root])


@pytest.fixture
def bundle(runs, tmp_path):
    """A bundle of the runs on disk."""
    path = tmp_path / f"runs{SUFFIX}"
    path.write_bytes(pack_bundle([bundle_line(run) for run in runs]))
    return path


def test_a_bundle_has_the_runs_in_their_order(bundle, runs):
    assert [run.path for run in load_runs([bundle])] == [bundle / run.name for run in runs]


def test_a_bundle_has_the_reason_of_a_run_without_results(bundle):
    run = load_runs([bundle])[2]
    assert run.state == "diverged"
    assert run.reason == "nan"
    assert run.problem is None


def test_a_bundle_has_the_numbers_of_its_runs(bundle, root):
    of_bundle = compared(bundle).rows[0]
    of_directories = compared(root).rows[0]
    assert [cell.mean for cell in of_bundle.cells] == [cell.mean for cell in of_directories.cells]


def test_facts_of_a_stored_study_are_read_as_they_were_written():
    """Keys keep their order, and numbers their digits."""
    (path,) = (tiny.ROOT / "docs" / "records" / "study-recall-lines").glob(f"*{SUFFIX}")
    lines = gzip.decompress(path.read_bytes()).splitlines()[1:]
    stored = [json.loads(line)["results"]["run"] for line in lines]
    read = [run.facts for run in load_runs([path])]
    assert json.dumps(read) == json.dumps(stored)


def test_a_bundle_of_a_bundle_is_the_same_file(bundle):
    lines = [bundle_line(run) for run in load_runs([bundle])]
    assert pack_bundle(lines) == bundle.read_bytes()


@pytest.mark.parametrize("secret", [b"my-machine", b"/home/me"])
def test_a_bundle_tells_nothing_of_the_machine(runs, secret):
    settings = runs[0].settings.with_changes(runs_dir="/home/me/runs")
    status = {**runs[0].status, "host": "my-machine", "pid": 77}
    line = bundle_line(replace(runs[0], status=status, settings=settings))
    assert secret not in line


def test_a_bundle_with_training_losses_is_read_as_one_without(bundle, runs):
    """Earlier versions put the losses that training logged into it."""
    lines = []
    for run in runs:
        content = json.loads(bundle_line(run)) | {"losses": {"tokens": [1], "loss": [3.0]}}
        lines.append(json.dumps(content).encode() + b"\n")
    records = [run.records for run in load_runs([bundle])]
    bundle.write_bytes(pack_bundle(lines))
    assert [run.records for run in load_runs([bundle])] == records


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_bundle_that_is_cut_is_a_problem(bundle, share):
    data = bundle.read_bytes()
    bundle.write_bytes(data[: int(share * len(data))])
    assert any(run.problem for run in load_runs([bundle]))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_bundle_with_a_flipped_bit_is_a_problem(bundle, share):
    data = bytearray(bundle.read_bytes())
    data[int(share * len(data))] ^= 4
    bundle.write_bytes(data)
    assert any(run.problem for run in load_runs([bundle]))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(gzip.compress(b"x" * 100)[:10] + b"\x07" + b"\xff" * 40, id="a header and noise"),
        pytest.param(gzip.compress(b'{"posenc_bundle": 2}'), id="a newer version"),
    ],
)
def test_a_file_that_is_no_bundle_is_a_problem(bundle, content):
    bundle.write_bytes(content)
    assert any(run.problem for run in load_runs([bundle]))


@pytest.mark.parametrize(
    "line",
    ['{"name": "../../x", "results": []}', '{"results": {"schema_version": 9}}', '{"name": 3}'],
)
def test_a_wrong_line_is_a_run_with_a_problem_below_the_bundle(bundle, line):
    bundle.write_bytes(pack_bundle([f"{line}\n".encode()]))
    (run,) = load_runs([bundle])
    assert run.problem
    assert run.path.parent == bundle


@pytest.mark.parametrize("typed", ["defalt", "headline-2"])
def test_a_folder_of_nearly_the_same_name_is_suggested(tmp_path, typed):
    for name in ("default", "headline-1"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"did you mean: \S*/(default|headline-1)$"):
        load_runs(tmp_path / typed)


def test_seeds_of_a_long_name_stay_apart(tmp_path):
    for seed in (0, 1, 2):
        write_run(tmp_path / "runs", f"an_encoding_{'x' * 70}", seed=seed)
    runs = load_runs([tmp_path / "runs"])
    assert len(runs) == 3
    bundle = tmp_path / "all.runs.jsonl.gz"
    bundle.write_bytes(pack_bundle([bundle_line(run) for run in runs]))
    assert [run.name for run in load_runs([bundle])] == [run.name for run in runs]

"""scripts/check_gpu.py, whose parts run on a CPU too: nobody wants to find a slip in it on a rented GPU."""

import json
import math
import os
import subprocess
import sys
import time

import pytest
import tiny
import torch

from posenc.encodings.base import Encoding, Shape

SCRIPTS = tiny.ROOT / "scripts"
PARTS_ON_A_CPU = ("numbers", "times", "peers", "evaluation", "nanos", "long_keys", "resume")


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))


# --- the whole visit


def visit(file):
    command = [sys.executable, str(SCRIPTS / "check_gpu.py"), "--all", "--device", "cpu", "--json", str(file)]
    return subprocess.run(command, capture_output=True, text=True, cwd=file.parent)


@pytest.fixture(scope="module")
def visited(tmp_path_factory):
    """Return the file and the end of a visit to the CPU."""
    file = tmp_path_factory.mktemp("visit") / "visit.json"
    return file, visit(file)


@pytest.mark.slow
def test_every_part_runs_on_a_cpu(visited):
    file, ended = visited
    assert ended.returncode == 0, ended.stdout + ended.stderr
    keys = json.loads(file.read_text())["items"]
    assert set(PARTS_ON_A_CPU) <= {key.partition("/")[0] for key in keys}


@pytest.mark.slow
def test_visit_ends_with_its_tables(visited):
    _, ended = visited
    for head in ("fp32, not compiled", "transformers Llama", "at 8T", "stopped by SIGTERM"):
        assert head in ended.stdout


@pytest.mark.slow
def test_same_command_measures_nothing_again(visited):
    file, _ = visited
    before = json.loads(file.read_text())["items"]
    assert visit(file).returncode == 0
    assert json.loads(file.read_text())["items"] == before


# --- workers


@pytest.fixture
def worker(tmp_path):
    from gpu.workers import Worker

    started = Worker(tmp_path / "log")
    yield started
    started.stop()


def test_worker_returns_what_the_function_returns(worker):
    assert worker.call(math.gcd, 12, 18, timeout=60) == 6


def test_worker_that_dies_is_a_failure_with_its_exit_code(worker):
    from gpu.workers import WorkerFailedError

    with pytest.raises(WorkerFailedError, match="exit code 3"):
        worker.call(os._exit, 3, timeout=60)


def test_exception_in_a_worker_is_a_failure_with_its_message(worker):
    from gpu.workers import WorkerFailedError

    with pytest.raises(WorkerFailedError, match="ZeroDivisionError"):
        worker.call(divmod, 1, 0, timeout=60)


def test_worker_that_is_too_slow_is_a_failure(worker):
    from gpu.workers import WorkerFailedError

    worker.call(math.gcd, 1, 1, timeout=60)  # it has started
    with pytest.raises(WorkerFailedError, match="no answer"):
        worker.call(time.sleep, 60, timeout=0.1)


# --- the document


@pytest.fixture
def file(tmp_path):
    """Return the JSON of an earlier visit, in which an item failed."""
    content = {
        "schema_version": 1,
        "machine": {"device_name": "NVIDIA H200"},
        "items": {"numbers/rope": {"checks": []}, "numbers/t5": {"failure": "out of memory"}},
        "left_out": ["numbers/fox"],
    }
    path = tmp_path / "visit.json"
    path.write_text(json.dumps(content))
    return path


def test_document_continues_an_earlier_one(file):
    from gpu.document import Document

    assert set(Document(file, again=False).items) == {"numbers/rope", "numbers/t5"}


def test_again_forgets_what_failed(file):
    from gpu.document import Document

    assert set(Document(file, again=True).items) == {"numbers/rope"}


def test_document_of_another_gpu_is_refused(file):
    from gpu.document import Document

    with pytest.raises(SystemExit, match="NVIDIA H200, this is NVIDIA A100"):
        Document(file, again=False).set_machine({"device_name": "NVIDIA A100"})


def test_result_is_on_the_disk_at_once(file):
    from gpu.document import Document

    Document(file, again=False).add("numbers/fox", {"checks": []})
    assert "numbers/fox" in json.loads(file.read_text())["items"]


# --- order and time


def visit_of_a_gpu(tmp_path):
    from gpu.items import PARTS, Visit
    from gpu.sizes import ON_GPU

    return Visit(
        sizes=ON_GPU,
        device="cuda",
        encodings=["rope", "alibi"],
        timed=ON_GPU.timed,
        peers=["nanoGPT-like"],
        parts=PARTS,
        log=tmp_path / "log",
    )


def test_every_item_has_a_key_of_its_own(tmp_path):
    from gpu.items import check_items, timed_items, warm_ups

    visit = visit_of_a_gpu(tmp_path)
    timed = timed_items(visit)
    keys = [item.key for item in (*check_items(visit), *timed, *warm_ups(timed, visit))]
    assert len(keys) == len(set(keys))


def test_every_encoding_is_compiled_before_it_is_timed(tmp_path):
    from gpu.items import timed_items, warm_ups

    visit = visit_of_a_gpu(tmp_path)
    timed = timed_items(visit)
    compiled = [item for item in timed if item.key.endswith("/training/compiled")]
    assert compiled
    assert {item.warm_up for item in compiled} <= {item.key for item in warm_ups(timed, visit)}


def test_what_there_is_no_time_for_is_listed(tmp_path):
    from gpu.document import Document
    from gpu.items import check_items, timed_items
    from gpu.visit import Clock, run

    visit = visit_of_a_gpu(tmp_path)
    document = Document(tmp_path / "visit.json", again=False)
    run(visit, document, Clock.of(minutes=0))
    expected = [item.key for item in (*check_items(visit), *timed_items(visit))]
    assert json.loads(document.path.read_text())["left_out"] == expected


def test_item_that_kills_its_process_takes_no_other_with_it(tmp_path):
    from gpu.document import Document
    from gpu.items import PoolItem
    from gpu.visit import Clock, Notebook, Pool

    deadly = PoolItem("deadly", 0, os._exit, (3,))
    harmless = [PoolItem(f"harmless/{number}", 0, dict, ()) for number in range(2)]
    document = Document(tmp_path / "visit.json", again=False)
    notebook = Notebook(document, Clock.of(minutes=2))
    Pool(visit_of_a_gpu(tmp_path), notebook, [deadly, *harmless]).run()
    assert {key for key, item in document.items.items() if "failure" in item} == {"deadly"}
    assert {item.key for item in harmless} < set(document.items)


def test_second_warm_up_keeps_the_time_of_the_first(tmp_path):
    from gpu.document import Document
    from gpu.visit import Clock, Notebook

    notebook = Notebook(Document(tmp_path / "visit.json", again=False), Clock.of(minutes=1))
    for seconds in (31.0, 4.0):  # the second one finds compiled code on the disk
        notebook.note("warm-up/small/rope", {"training": seconds}, began=time.monotonic())
    assert notebook.document.items["warm-up/small/rope"]["training"] == 31.0


# --- numbers


def test_kernel_that_drops_the_bias_is_off(monkeypatch):
    from gpu.numbers import check_encoding

    from posenc.model import kernels

    monkeypatch.setattr(kernels, "choose_kernel", lambda heads, encoding: "causal")
    checks = check_encoding("alibi", (40,), "cpu")["checks"]
    assert all(check["is_bad"] for check in checks if check["option"] == "plain")


@pytest.mark.parametrize(("parameter", "gradient", "stays"), [("b2", 1e-14, False), ("table", 1e-3, True)])
def test_gradient_of_an_inert_parameter_is_left_out_if_it_is_zero(parameter, gradient, stays):
    from gpu.numbers import _without_inert

    encoding = Encoding(Shape(8, 2, 4, 2, 16))
    encoding.inert = {"b2": "the softmax takes it away", "table": "some rows are never looked up"}
    name = f"d encoding.{parameter}"
    tensors = {"d norm.weight": torch.ones(4), name: torch.full((4,), gradient)}
    assert (name in _without_inert(tensors, encoding)) is stays


def test_blocks_in_float32_are_checked_too():
    """The reference is in float64, so that rounding of the blocks is seen."""
    from gpu.numbers import check_encoding

    checks = check_encoding("cable", (40,), "cpu")["checks"]
    fp32 = next(check for check in checks if check["precision"] == "fp32")
    assert 0 < fp32["off_of_blocks"] < 1e-4


def test_calls_of_flex_attention_are_counted_by_layer(monkeypatch):
    from gpu.numbers import _flex_layers

    from posenc.model import flex
    from posenc.model.inputs import Heads, Layer

    monkeypatch.setattr(flex, "attend_flex", lambda heads, layer, scale: heads.v)
    heads = Heads(*torch.zeros(3, 1, 1, 2, 4))
    with _flex_layers() as layers:
        flex.attend_flex(heads, Layer(None, 7, torch.arange(2)), 0.5)
    assert layers == [7]


# --- tables


def test_table_has_a_dash_where_nothing_was_measured():
    from docs.gpu_tables import steps

    table = steps({"times/small/rope/plain": {"ms": 56.2}}, "small")
    (row,) = table.rows
    assert row[table.heads.index("not compiled, ms")] == "56.2"
    assert row[table.heads.index("compiled, ms")] == "-"


@pytest.mark.parametrize(
    "name", ["numbers", "small", "base", "peers", "evaluation", "nanos", "long_keys", "resume"]
)
def test_table_of_nothing_has_no_rows(name):
    from docs.gpu_tables import TABLES

    assert not TABLES[name]({}).rows


def test_page_shows_a_table_of_a_visit(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS / "docs"))
    import measured_tables

    items = {"long_keys/fp32/66560": {"masked": 4e-7, "causal": 0.5}}
    (tmp_path / "visit.json").write_text(json.dumps({"items": items}))
    monkeypatch.setattr(measured_tables, "RECORDS", tmp_path)
    assert "| fp32 | 66560 | 4.0e-07 | 5.0e-01 |" in measured_tables.gpu_table("visit.json", "long_keys")

"""A bundle holds what `posenc compare` needs, and a damaged or hostile one is told, not believed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from fake_runs import MULTIPLES, write_run

from posenc.results.bundle import SUFFIX, bundled, packed
from posenc.results.load import load_runs
from posenc.results.losses import MOST_KEPT, losses_of, to_keep

Posenc = Callable[..., tiny.Result]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("rope", "alibi"):
        for seed in range(3):
            losses = {m: 1.2 + m / 10 + seed / 70 + len(name) / 30 for m in MULTIPLES}
            write_run(tmp_path / "runs", name, seed=seed, losses=losses)
    return tmp_path


def test_the_tables_of_a_bundle_are_those_of_its_runs(posenc: Posenc, folder: Path) -> None:
    bundle = folder / f"two{SUFFIX}"
    made = posenc("export", str(folder / "runs"), "--out", str(bundle))
    assert (made.code, made.out) == (0, "") and "6 runs" in made.err
    for extra in ([], ["--format", "markdown"], ["--baseline", "rope"], ["--where", "encoding=rope"]):
        direct, from_bundle = (posenc("compare", str(p), *extra) for p in (folder / "runs", bundle))
        assert direct.code == from_bundle.code == 0, from_bundle.err
        assert direct.out == from_bundle.out
    assert posenc("compare", str(folder)).code == 0  # a folder with both: each has its own path
    again = folder / f"again{SUFFIX}"
    posenc("export", str(folder / "runs"), "--out", str(again))
    assert again.read_bytes() == bundle.read_bytes()


def write_losses(run: Path, every: int = 1, without: int = 0) -> None:
    """A thousand steps that were logged, but for one."""
    steps = [step for step in range(every, 1001, every) if step != without]
    lines = [{"step": step, "tokens": 2048 * step, "loss": 3 / step} for step in steps]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_training_losses_are_kept_and_can_be_drawn(posenc: Posenc, folder: Path) -> None:
    for run in (folder / "runs").glob("*/"):
        write_losses(run)
    bundle = folder / f"two{SUFFIX}"
    assert posenc("export", str(folder / "runs"), "--out", str(bundle)).code == 0
    for run in load_runs([bundle]):
        losses = losses_of(run)
        assert MOST_KEPT - 2 <= len(losses) <= MOST_KEPT and max(losses) == 2048 * 1000
        assert all(loss == pytest.approx(3 * 2048 / tokens, rel=1e-4) for tokens, loss in losses.items())
    picture = folder / "a.svg"
    assert posenc("compare", str(bundle), "--plot", str(picture), "--plot-kind", "training").code == 0
    assert "rope" in picture.read_text() and "tokens trained on" in picture.read_text()
    again = folder / f"again{SUFFIX}"
    posenc("export", str(bundle), "--out", str(again))
    assert again.read_bytes() == bundle.read_bytes()  # a bundle of a bundle


def test_a_step_that_one_seed_did_not_log_costs_that_step_alone(folder: Path) -> None:
    runs = sorted((folder / "runs").glob("rope*/"))
    for run, without in zip(runs, (0, 900, 17), strict=True):
        write_losses(run, without=without)
    found = [set(to_keep(losses_of(run))["tokens"]) for run in load_runs(runs)]
    assert len(found[0] & found[1] & found[2]) >= MOST_KEPT - 4


def test_few_losses_are_kept_as_they_are(folder: Path) -> None:
    (run, *_) = sorted((folder / "runs").glob("rope*/"))
    write_losses(run, every=10)
    (loaded,) = load_runs([run])
    assert to_keep(losses_of(loaded))["tokens"] == [20480 * k for k in range(1, 101)]


@pytest.mark.parametrize("odd", ['{"tokens": 1e30, "loss": 1}', '{"tokens": 5, "loss": 1.7e308}', "[", "{}"])
def test_odd_lines_of_a_log_do_not_end_an_export(folder: Path, odd: str) -> None:
    (run, *_) = sorted((folder / "runs").glob("rope*/"))
    write_losses(run, every=500)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(odd + "\n")
    (loaded,) = load_runs([run])
    assert json.loads(bundled(loaded))["losses"]["tokens"] == [2048 * 500, 2048 * 1000]


def test_a_log_that_is_a_link_out_of_the_run_is_not_read(folder: Path) -> None:
    (run, other, *_) = sorted((folder / "runs").glob("rope*/"))
    write_losses(other)
    (run / "metrics.jsonl").unlink(missing_ok=True)
    (run / "metrics.jsonl").symlink_to(other / "metrics.jsonl")
    (loaded,) = load_runs([run])
    assert losses_of(loaded) == {}


@pytest.mark.parametrize(
    "columns",
    [
        None,
        [],
        {"tokens": [1]},
        {"tokens": [1], "loss": [1, 2]},
        {"tokens": ["1"], "loss": [1]},
        {"tokens": [1], "loss": [None]},
        {"tokens": [1], "loss": [True]},
        {"tokens": [1], "loss": [1e300]},
        {"tokens": [-1], "loss": [1]},
        {"tokens": [[1]], "loss": [1]},
        {"tokens": [1] * (MOST_KEPT + 1), "loss": [1] * (MOST_KEPT + 1)},
    ],
)
def test_odd_training_losses_are_none_and_the_rest_is_read(folder: Path, columns: object) -> None:
    (run, *_) = load_runs([folder / "runs"])
    line = {**json.loads(bundled(run)), "losses": columns}
    bundle = folder / f"odd{SUFFIX}"
    bundle.write_bytes(packed([json.dumps(line).encode() + b"\n"]))
    (found,) = load_runs([bundle])
    assert losses_of(found) == {} and found.records and found.problem is None


@pytest.mark.parametrize("key", ["config", "status"])
def test_settings_that_are_nested_without_end_are_a_damaged_run(
    posenc: Posenc, folder: Path, key: str
) -> None:
    lines = [json.loads(bundled(run)) for run in load_runs([folder / "runs"])]
    deep: object = 1
    for _ in range(300):
        deep = {"a": deep}
    lines[0][key] = {**lines[0][key], "a": deep}
    bundle = folder / f"deep{SUFFIX}"
    bundle.write_bytes(packed([json.dumps(line).encode() + b"\n" for line in lines]))
    runs = load_runs([bundle])
    assert [run.problem for run in runs if run.problem] == ["nested too deeply"] and len(runs) == 6
    assert posenc("compare", str(bundle)).code == 0


def test_compressed_data_that_cannot_be_unpacked_is_told(folder: Path) -> None:
    bundle = folder / f"bad{SUFFIX}"
    bundle.write_bytes(gzip.compress(b"x" * 100)[:10] + b"\x07" + b"\xff" * 40)  # a block of no known kind
    (run,) = load_runs([bundle])
    assert "damaged" in (run.problem or "")


def test_it_tells_nothing_of_its_owner(folder: Path) -> None:
    (run, *_) = load_runs([folder / "runs"])
    run.status |= {"host": "mine", "pid": 77}
    run.config = {**(run.config or {}), "runs_dir": "/home/me/runs"}
    line = bundled(run)
    assert b"mine" not in line and b"/home/me" not in line


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_damage_is_told(posenc: Posenc, folder: Path, share: float) -> None:
    bundle = folder / f"two{SUFFIX}"
    data = packed([bundled(run) for run in load_runs([folder / "runs"])])
    at = int(share * len(data))
    for broken in (data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]):
        bundle.write_bytes(broken)
        assert any(run.problem for run in load_runs([bundle]))


def test_lines_that_are_no_runs_are_told(folder: Path) -> None:
    bundle = folder / f"odd{SUFFIX}"
    head = {"posenc_bundle": 1, "schema_version": 1, "runs": 3}
    lines = [head, {"name": "../../x", "results": []}, {"results": {"schema_version": 9}}, {"name": 3}]
    bundle.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    runs = load_runs([bundle])
    assert len(runs) == 3 and all(run.problem for run in runs)
    assert all(run.path.parent == bundle for run in runs)
    bundle.write_bytes(gzip.compress(json.dumps({"posenc_bundle": 2}).encode()))
    assert [run.path for run in load_runs([bundle])] == [bundle]


def test_what_is_not_finished_is_left_out_and_named(posenc: Posenc, folder: Path) -> None:
    (status,) = (folder / "runs").glob("rope*s0*/status.json")
    status.write_text(json.dumps({"status": "failed"}))
    made = posenc("export", str(folder / "runs"), "--out", str(folder / f"x{SUFFIX}"))
    assert "5 runs" in made.err and f"left out, not finished: {status.parent.name}" in made.err


def test_a_run_that_diverged_goes_with_its_row(posenc: Posenc, tmp_path: Path) -> None:
    """Without it the row would be that of the survivors, and could be the best."""
    runs, bundle = tmp_path / "runs", tmp_path / f"x{SUFFIX}"
    for seed in range(3):
        write_run(runs, "rope", seed=seed, losses={1: 1.3, 8: 2.0})
        bad = {"status": "diverged", "reason": "loss is nan"} if seed == 2 else {}
        write_run(runs, "alibi", seed=seed, losses={1: 1.3, 8: 1.3}, results=not bad, **bad)
    made = posenc("export", str(runs), "--out", str(bundle))
    assert "6 runs (1 diverged)" in made.err and "left out" not in made.err
    direct, from_bundle = (posenc("compare", str(path)) for path in (runs, bundle))
    assert direct.out == from_bundle.out and "seed 2 diverged: loss is nan" in direct.out


@pytest.mark.parametrize("out", ["x.json", f"nowhere/x{SUFFIX}"])
def test_a_wrong_place_is_refused(posenc: Posenc, folder: Path, out: str) -> None:
    made = posenc("export", str(folder / "runs"), "--out", out)
    assert made.code == 2 and "--out" in made.err

"""Sweeps on a Ray cluster, without one: what a node is told, what it runs, what comes back.

tests/cluster/test_ray.py has a real cluster.
"""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from fake_runs import only_run

from posenc.core.errors import RunError, UserError
from posenc.running.invocation import Invocation
from posenc.running.locks import HeldRunError, locked
from posenc.running.ray_cluster import launch, node
from posenc.running.ray_cluster.returned_folder import files_to_return, write_returned
from posenc.running.sweep.task import SweepTask
from posenc.settings.launchers import RayLauncherSettings
from posenc.settings.tree import SweepSettings

ONE_JOB = ("train", "-m", "hydra/launcher=ray", "encoding=rope", "seed=0")
SETTINGS = RayLauncherSettings(
    address="auto", cpus_per_task=None, gpus_per_task=None, restarts=3, folders="auto"
)
SWEEP = SweepSettings(jobs=None, slots=1, fail_fast=False)
TASK = SweepTask(
    name="[1/1] rope",
    command=["/usr/bin/python", "-P", "-m", "posenc", "train", "encoding=rope", "hydra.mode=RUN"],
    directory=Path("runs/default/rope-1"),
    overrides=["encoding=rope"],
    evaluation=object(),
    precision="bf16",
    threads=2,
)


# --- what is refused


def test_without_ray_it_says_what_to_install(posenc, working_folder, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find_spec(name, *rest)
    )
    result = posenc(*ONE_JOB, *tiny.MODEL)
    assert result.code == 2
    assert "pip install 'posenc[ray]'" in result.err
    assert not list(working_folder.iterdir())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("folders=mine", "allowed: auto, shared, own"),
        ("cpus_per_task=0", "hydra.launcher.cpus_per_task=0: too small"),
        ("gpus_per_task=-1", "hydra.launcher.gpus_per_task=-1: out of range"),
        ("cpu=2", "hydra.launcher.cpu=2: there is no such setting"),
    ],
)
def test_a_wrong_setting_is_refused(posenc, setting, message):
    result = posenc(*ONE_JOB, *tiny.MODEL, f"hydra.launcher.{setting}")
    assert result.code == 2
    assert message in result.err


def test_without_a_sweep_the_launcher_is_refused(posenc):
    result = posenc("train", "hydra/launcher=ray", "encoding=rope")
    assert result.code == 2
    assert "add -m" in result.err


@pytest.mark.parametrize(
    ("address", "message"), [("ray://head:10001", "Ray's client"), ("127.0.0.1:1", "no Ray cluster")]
)
def test_an_address_without_a_cluster_is_refused_at_once(monkeypatch, address, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UserError) as refusal, launch._connected(address):
        pass
    assert message in refusal.value.problem


def test_an_evaluation_is_refused_where_nodes_have_folders_of_their_own():
    with pytest.raises(UserError, match=r"hydra\.launcher\.folders"):
        launch.launch(
            SETTINGS.with_changes(folders="own"), SWEEP, Invocation(), [replace(TASK, evaluation=None)]
        )


def test_a_gpu_by_its_number_is_refused():
    with pytest.raises(UserError) as caught:
        launch.launch(SETTINGS, SWEEP, Invocation(), [replace(TASK, device="cuda:1")])
    assert caught.value.key == "device"
    assert "Ray chooses the GPU" in caught.value.text()


# --- what a node is told


def test_a_node_gets_the_command_line_with_the_precision_that_the_run_has_here():
    order = launch._order(TASK, SETTINGS, {}, (Path("marker"), "text"))
    assert order.arguments == [*TASK.command[1:], "train.precision=bf16"]


@pytest.mark.parametrize("typed", ["bf16", "auto"])
def test_a_node_trains_in_the_precision_that_the_run_has_here(typed):
    task = replace(TASK, command=[*TASK.command, f"train.precision={typed}"])
    order = launch._order(task, SETTINGS, {}, (Path("marker"), "text"))
    assert order.arguments == [*TASK.command[1:], "train.precision=bf16"]


@pytest.mark.parametrize(
    ("device", "settings", "cpus", "gpus"),
    [
        pytest.param("cpu", {}, 2, 0, id="as many cores as threads"),
        pytest.param("cuda", {}, 2, 0.5, id="a slot of a GPU"),
        pytest.param("cuda", {"cpus_per_task": 8, "gpus_per_task": 1.0}, 8, 1, id="what was set"),
    ],
)
def test_the_share_of_a_job(monkeypatch, device, settings, cpus, gpus):
    monkeypatch.delenv("OMP_NUM_THREADS")
    sweep = SWEEP.with_changes(slots=2)
    share = launch._share(replace(TASK, device=device), SETTINGS.with_changes(**settings), sweep)
    assert share == launch.NodeShare(cpus, gpus)


# --- what a node runs


@pytest.fixture
def order(working_folder):
    """An order from a folder that this node sees; the job prints a line and fails."""
    marker = working_folder / ".marker"
    marker.write_text("text")
    return node.Order(
        task_name="rope",
        arguments=["-c", "import os; print(os.getcwd(), os.environ['WORD']); exit(3)", "runs_dir=x"],
        variables={"WORD": "hello"},
        folder=str(working_folder),
        run="default/rope-1",
        folders="auto",
        marker=str(marker),
        marker_text="text",
    )


@pytest.fixture
def board(monkeypatch):
    """A board that is no actor, and a Ray that knows it."""
    context = SimpleNamespace(get_node_id=lambda: "abc")
    fake_ray = SimpleNamespace(
        get_runtime_context=lambda: context,
        get=lambda reference: reference,
        util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.2"),
    )
    monkeypatch.setitem(sys.modules, "ray", fake_ray)
    taken = node.Board()
    return SimpleNamespace(add=SimpleNamespace(remote=taken.add), take=taken.take)


def test_the_end_of_a_job_is_a_result_however_it_ends(order, board):
    end = node.run_order(order, board)
    assert end.exit_code == 3
    assert end.node == "abc"
    assert end.files is None


def test_what_a_job_prints_arrives_before_its_end(order, board, working_folder):
    end = node.run_order(order, board)
    line = f"{working_folder} hello"
    assert end.last_lines == [line]
    messages = [message for message in board.take() if message.text]
    assert messages == [(node.BEGINS, "rope", "10.0.0.2"), (node.PRINTS, "rope", line)]
    assert board.take() == []


@pytest.mark.parametrize("changes", [{"marker_text": "other"}, {"folders": "own"}])
def test_a_node_that_does_not_share_the_folder_runs_in_one_of_its_own(order, board, changes):
    workplace = node._workplace(replace(order, **changes))
    own = node.own_runs_dir()
    assert workplace == node._Workplace(own, [*order.arguments[:-1], f"runs_dir={own}"], own / order.run)


@pytest.mark.parametrize(
    "changes", [{"folders": "shared"}, {"run": None}], ids=["told to share it", "an evaluation"]
)
def test_a_job_that_needs_the_folder_fails_where_it_is_not(order, board, changes):
    end = node.run_order(replace(order, marker_text="other", **changes), board)
    assert end.exit_code == 1
    assert end.last_lines == [f"error: this node does not see {order.folder}, where the command was started"]


def test_a_cancelled_job_is_asked_to_stop_and_waited_for():
    """Ray cancels a task by KeyboardInterrupt in the thread that waits."""

    class Process:
        """It ends once it was asked to."""

        asked = False

        def wait(self, seconds):
            if not self.asked:
                raise KeyboardInterrupt
            return 143

        def terminate(self):
            self.asked = True

    assert node._wait(Process()) == 143


# --- what comes back


@pytest.fixture
def there(working_folder):
    """A finished run on a node."""
    return tiny.write(
        working_folder / "there",
        {
            "status.json": "{}",
            "log.txt": "a log",
            "results.json": "{}",
            "checkpoints/step-00000040/model.safetensors": b"weights",
            ".run.lock": "",
        },
    )


def test_a_finished_run_comes_back_whole(there, working_folder):
    here = working_folder / "here"
    write_returned(here, files_to_return(there, is_finished=True))
    returned = {path.relative_to(here).as_posix() for path in here.rglob("[!.]*") if path.is_file()}
    assert returned == {
        "status.json",
        "log.txt",
        "results.json",
        "checkpoints/step-00000040/model.safetensors",
    }


def test_an_unfinished_run_tells_why_and_keeps_its_checkpoints(there):
    assert files_to_return(there, is_finished=False) == {"log.txt": b"a log", "status.json": b"{}"}


def test_checkpoints_of_an_earlier_try_go(there, working_folder):
    here = tiny.write(working_folder / "here", {"checkpoints/step-00000020/model.safetensors": b"old"})
    write_returned(here, files_to_return(there, is_finished=True))
    assert [path.name for path in (here / "checkpoints").iterdir()] == ["step-00000040"]


def test_checkpoints_here_stay_when_an_unfinished_run_comes_back(there, working_folder):
    here = tiny.write(working_folder / "here", {"checkpoints/step-00000020/model.safetensors": b"old"})
    write_returned(here, files_to_return(there, is_finished=False))
    assert [path.name for path in (here / "checkpoints").iterdir()] == ["step-00000020"]


@pytest.mark.parametrize("name", ["../outside", "/outside"])
def test_nothing_is_written_outside_the_run_directory(working_folder, name):
    with pytest.raises(RunError):
        write_returned(working_folder / "here", {name: b""})


def test_a_run_that_another_process_holds_is_not_overwritten(trained_once, there):
    here = only_run(trained_once)
    with locked(here), pytest.raises(HeldRunError):
        write_returned(here, files_to_return(there, is_finished=True))

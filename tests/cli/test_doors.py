"""The installed command and the scripts of the clone, as processes of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import tiny


def test_help_imports_nothing_heavy(place: Path) -> None:
    code = (
        "import sys, posenc.cli\n"
        "sys.argv = ['posenc', '--help']\n"
        "try: posenc.cli.main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = {'torch', 'hydra', 'omegaconf', 'numpy', 'wandb', 'datasets', 'scipy', 'tokenizers'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.strip() == "[]"
    assert "Train short, test long" in done.stdout


def test_importing_the_command_line_imports_nothing_heavy(place: Path) -> None:
    code = "import sys, posenc.cli; print([m for m in ('torch', 'hydra', 'rich.table') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_doors_of_the_clone_are_the_command(trained_once: Path, place: Path, corpus: Path) -> None:
    shutil.copytree(trained_once, place / "runs")
    run = next((place / "runs" / "default").iterdir())
    arguments = [*tiny.TINY, f"data.paths={corpus}", "encoding=rope"]
    train = tiny.spawn(*arguments, script="train.py", cwd=place)
    assert train.code == 0 and "already finished" in train.err
    assert train.out == (trained_once.parent / "out.txt").read_text()
    evaluated = tiny.spawn(f"run={run}", "eval.protocols=[fixed-target]", script="eval.py", cwd=place)
    assert evaluated.code == 0 and evaluated.out == train.out[: len(evaluated.out) - 1] + "\n"
    compared = tiny.spawn("compare", "--format", "json", script="cli.py", cwd=place)
    assert compared.code == 0 and json.loads(compared.out)["rows"][0]["label"] == "rope"
    wrong = tiny.spawn("encoding=roppe", script="train.py", cwd=place)
    assert wrong.code == 2 and "did you mean: rope" in wrong.err and wrong.out == ""


def test_the_console_script_is_installed(place: Path) -> None:
    script = Path(sysconfig.get_path("scripts")) / "posenc"
    if not script.exists():
        pytest.skip("posenc is not installed here")
    done = subprocess.run([script, "--version"], cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("posenc ")


def torchrun(place: Path, processes: int, *arguments: str) -> tiny.Result:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [str(tiny.ROOT / "train.py"), *arguments]
    done = subprocess.run(
        command, cwd=place, env=tiny.environment(), capture_output=True, text=True, timeout=120
    )
    return tiny.Result(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow  # test_distributed.py says it of two
def test_torchrun_with_one_process_is_the_command(place: Path, corpus: Path) -> None:
    result = torchrun(place, 1, *tiny.TINY, f"data.paths={corpus}", "encoding=rope", "eval.lengths=[1x]")
    assert result.code == 0, result.err
    assert result.out.startswith("fixed-target") and len(list(place.glob("runs/default/*/results.json"))) == 1


def test_stdout_closed_early_is_no_disaster(trained_once: Path, place: Path) -> None:
    process = tiny.start("compare", str(trained_once), "--format", "json", cwd=place)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.wait(60)
    assert "Traceback" not in err and "fault of posenc" not in err

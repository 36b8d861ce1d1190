"""`posenc eval -m run=...`: folders and globs stand for the runs below them."""

import shutil

import pytest

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError

NAMES = ("a+rope-s0", "b [odd], it's", "c=d e")


@pytest.fixture
def runs(run_copy, place):
    """A folder with three copies of a run under unusual names, one of them deeper."""
    folder = place / "several"
    for name, where in zip(NAMES, (folder, folder / "deeper", folder), strict=True):
        shutil.copytree(run_copy, where / name)
    return folder


def runs_of(*words):
    composed = compose_jobs("eval", parse(["-m", *words]))
    return [job.settings["run"] for job in composed.jobs]


def test_a_folder_stands_for_every_run_below_it(runs):
    every = [str(runs / NAMES[0]), str(runs / NAMES[2]), str(runs / "deeper" / NAMES[1])]
    assert runs_of(f"run={runs}") == every
    assert runs_of(f"run={runs}/deeper,{runs / NAMES[0]},{runs}") == [every[2], every[0], every[1]]
    assert len(runs_of(f"run={runs}", "extend=pi,ntk")) == 6


def test_a_glob_stands_for_what_it_matches(runs, monkeypatch):
    monkeypatch.chdir(runs)
    assert runs_of("run=a*") == [NAMES[0]]
    assert runs_of("run='[abc][+=]*'") == [NAMES[0], NAMES[2]]


def test_what_has_nothing_to_measure_is_named(runs, capsys):
    shutil.rmtree(runs / NAMES[0] / "checkpoints")
    (runs / NAMES[2] / "status.json").write_text('{"status": "interrupted"}')
    assert runs_of(f"run={runs}") == [str(runs / "deeper" / NAMES[1])]
    told = capsys.readouterr().err
    assert f"{runs / NAMES[2]}: left out: interrupted" in told
    assert f"{runs / NAMES[0]}: left out: no checkpoint" in told
    with pytest.raises(UserError, match="no trained run below it"):
        runs_of(f"run={runs / NAMES[0]}/records,{runs}")
    with pytest.raises(UserError, match="nothing is there"):
        runs_of(f"run={runs}/z*")


def test_a_folder_without_m_says_how(posenc, runs):
    for given in (runs, f"{runs}/*"):
        result = posenc("eval", f"run={given}")
        assert result.code == 2 and "posenc eval -m run=..." in result.err

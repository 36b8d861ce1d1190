"""From the words of a command line to typed settings, and what is refused on the way."""

import pytest

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.settings.tree import EvalCommandSettings, RunSettings


def settings(*words, command="train"):
    return compose_jobs(command, parse(list(words), command)).jobs[0].settings


def test_train_composes_the_settings_of_a_run():
    assert isinstance(settings("encoding=rope"), RunSettings)


def test_eval_composes_its_own():
    assert isinstance(settings("run=somewhere", command="eval"), EvalCommandSettings)


@pytest.mark.parametrize(
    ("override", "keeps_shares"),
    [
        ("data.split.test=0.2", True),
        ("data.split={validation: 0.1, test: 0.3}", True),
        ("data.name=mine", False),
        ("data.separator=x", False),
    ],
)
def test_shares_that_a_user_set_are_known_by_the_line(override, keeps_shares):
    evaluation = settings("run=somewhere", "data=files", "data.paths=texts", override, command="eval")
    assert evaluation.keeps_shares == keeps_shares


def test_nobody_but_posenc_says_that_shares_were_set():
    with pytest.raises(UserError, match="keeps_shares"):
        settings("run=somewhere", "+keeps_shares=true", command="eval")


@pytest.mark.parametrize(
    ("override", "value"),
    [("train.tokens=4e6", 4_000_000), ("train.tokens=5000", 5000), ("train.tokens=6e3", 6000)],
)
def test_whole_numbers_may_have_an_exponent(override, value):
    assert repr(settings(override).train.tokens) == repr(value)


def test_a_whole_number_is_taken_for_a_number():
    assert repr(settings("train.checkpoint_seconds=3").train.checkpoint_seconds) == "3.0"


def test_a_number_may_be_a_name():
    assert settings("name=7").name == "7"


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("train.tokens='4e6'", "train.tokens=4e6: wrong type"),
        ("seed=null", "seed=null: must be given"),
        ("~seed", "seed: is needed and has no default"),
        ("+foo=1", "foo: there is no such setting"),
        ("+train.tokes=1", "did you mean: train.tokens"),
        ("train.tokes=1", "did you mean: train.tokens"),
        ("lr=1", "did you mean: train.lr"),
        ("+train.tuned=mine", "train.tuned: there is no such setting"),
        ("+schema_version=3", "schema_version: there is no such setting"),
        ("train=1", "train"),
        ("encoding.windo=3", "encoding.windo"),
        ("attention.kv_rank=3", "is a setting of attention=mla"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(word, problem):
    with pytest.raises(UserError) as caught:
        settings(word)
    assert problem in str(caught.value)


def test_a_setting_of_the_run_is_not_evals():
    with pytest.raises(UserError, match="is the run's own"):
        settings("run=x", "model=tiny", command="eval")


def test_jobs_that_are_the_same_are_one():
    jobs = compose_jobs("train", parse(["-m", "encoding=rope,rope", "seed=0"])).jobs
    assert len(jobs) == 1


def test_a_sweep_has_a_job_for_every_combination():
    jobs = compose_jobs("train", parse(["-m", "encoding=rope,alibi", "seed=0,1"])).jobs
    assert [(job.settings.encoding.name, job.settings.seed) for job in jobs] == [
        ("rope", 0),
        ("rope", 1),
        ("alibi", 0),
        ("alibi", 1),
    ]


def test_of_a_setting_that_stands_twice_the_last_one_counts_and_that_is_said(capsys):
    assert settings("seed=1", "seed=2").seed == 2
    assert capsys.readouterr().err == "seed=1 has no effect: the last one counts, seed=2\n"


def test_two_choices_of_a_group_are_refused():
    with pytest.raises(UserError, match="-m encoding=rope,alibi"):
        settings("encoding=rope", "encoding=alibi")


def test_a_job_of_a_sweep_may_have_the_settings_of_the_sweep():
    assert settings("sweep.jobs=2", "hydra.mode=RUN").sweep.jobs == 2

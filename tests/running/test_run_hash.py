"""What names a run: everything that defines it, and nothing else."""

import re
import shutil
from pathlib import Path

import pytest
import tiny

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.encodings.registry import encoding_class
from posenc.running.train_job import train_job
from posenc.training import device


@pytest.fixture
def job(place, corpus):
    """The validated job of the tiny run with these overrides."""

    def make(*overrides):
        line = parse([*tiny.TINY, f"data.paths={corpus}", "encoding=rope", *overrides])
        return train_job(compose_jobs("train", line).jobs[0].settings)

    return make


SAME = [
    *("device=auto", "train.compile=true", "train.log_every=7", "train.checkpoint_seconds=1"),
    *("tracking=wandb", "tracking.mode=offline", "name=other", "experiment_name=elsewhere", "runs_dir=there"),
    *("eval.lengths=[1x]", "eval.protocols=[nonoverlapping]", "eval.max_targets=10"),
    *("encoding.base=10000", "model.name=another", "model.short_conv=null", "train.length_schedule=null"),
]
OTHER = [
    *(["seed=1"], ["encoding.base=500"], ["train.tokens=5121"], ["train.precision=bf16"]),
    *(["model.mlp_ratio=2"], ["optim.weight_decay=0.2"], ["data.split.test=0.3"]),
    ["tokenizer=bpe", "tokenizer.vocab_size=300"],
    *([f"data.plant={{share: 0.5, pairs: 2, cue: 1, alphabet: {n}, weight: 1.0}}"] for n in (8, 9)),
    *([f"train.length_schedule=[[{share},8],[{1 - share},16]]"] for share in (0.4, 0.5)),
    *(["model.short_conv=4"], ["model.short_conv=3"]),
    *(["attention=mla"], ["attention.scale=logn"], ["positions=randomized"]),
    ["encoding=sum", "encoding.parts=[alibi,rope]"],
    ["encoding=sum", "encoding.parts=[nope,{name:rope,base:500}]"],
]


def test_everything_that_defines_a_run_changes_its_hash_and_nothing_else(job, monkeypatch):
    own = job().hash
    assert job(*SAME).hash == own
    assert len({own, *(job(*overrides).hash for overrides in OTHER)}) == len(OTHER) + 1
    monkeypatch.setattr(encoding_class("rope"), "revision", 99)  # another revision is another run
    assert job().hash != own


def test_the_corpus_counts_by_its_text_not_its_place(job, corpus, place):
    shutil.copytree(corpus, place / "moved")
    assert job(f"data.paths={place / 'moved'}").hash == job().hash
    (place / "moved" / "000.txt").write_text("other text")
    assert job(f"data.paths={place / 'moved'}").hash != job().hash


def test_auto_goes_on_in_the_precision_that_a_run_was_begun_in(job, monkeypatch):
    begun = job("train.precision=bf16")
    begun.directory.mkdir(parents=True)
    monkeypatch.setattr(device, "has_hardware_bf16", lambda _: False)  # continued on another machine
    there = job("train.precision=auto")
    assert (there.precision, there.begun_here) == ("bf16", "fp32")
    assert (there.directory, there.hash) == (begun.directory, begun.hash)
    assert there.settings["train"]["precision"] == "bf16"
    said = job("train.precision=fp32")
    assert said.begun_here is None and said.directory != begun.directory  # said, so meant
    said.directory.mkdir()
    assert job("train.precision=auto").directory == said.directory


def test_steps_are_the_tokens_over_the_batch(job):
    for one in (job(), job("train.batch_tokens=130")):  # 8 windows of 16, no part of a ninth
        assert (one.steps, one.batch_windows) == (tiny.STEPS, 8)
    assert job("train.tokens=128").steps == 1 and job().schedule == [(40, 16)]
    made = job("train.length_schedule=[[0.25,4],[0.5,8],[0.25,16]]")
    assert made.schedule == [(10, 4), (30, 8), (40, 16)] and made.steps == 40


def test_the_directory_is_named_by_experiment_name_and_hash(job):
    plain, named = job(), job("name=mine", "experiment_name=trial", "runs_dir=out")
    assert plain.directory == Path(f"runs/default/rope-d32L2H2M4-T16-s0-{plain.hash}")
    assert named.directory == Path(f"out/trial/mine-{plain.hash}")


def test_a_schedule_of_lengths_that_cannot_be_is_refused(job):
    for given, words in (
        ("[]", "no list of stages"),
        ("[0.5,16]", "no list of stages"),
        ("[[a,8],[0.5,16]]", "no list of stages"),
        ("[[0.5,8],[0.4,16]]", "the shares add up to 1"),
        ("[[0.5,16],[0.5,8]]", "lengths must grow up to context_length"),
        ("[[0.5,4],[0.5,8]]", "lengths must grow up to context_length"),
        ("[[0.5,6],[0.5,16]]", "does not divide the 128 tokens of a batch"),
        ("[[0.5,8],[0.5,32]]", "a whole number from 2 to 16"),
        ("[[0.001,8],[0.999,16]]", "a stage has none of the 40 steps"),
    ):
        with pytest.raises(UserError, match=re.escape(words)) as caught:
            job(f"train.length_schedule={given}")
        assert caught.value.key.startswith("train.length_schedule")

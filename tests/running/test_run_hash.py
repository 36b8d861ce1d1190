"""What names a run: everything that defines it, and nothing else."""

import shutil
from pathlib import Path

import pytest
import tiny

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.data import Stage
from posenc.encodings.registry import encoding_class
from posenc.running.plan_training import plan_training
from posenc.settings.tree import RunSettings
from posenc.training import device


@pytest.fixture
def plan(working_folder, corpus):
    """Return the validated job of the tiny run with these overrides."""

    def make(*overrides):
        line = parse([*tiny.TINY, f"data.paths={corpus}", *overrides])
        return plan_training(compose_jobs("train", line).jobs[0].settings)

    return make


FREE = [
    "device=auto",
    "train.compile=true",
    "train.log_every=7",
    "train.validate_every=3",
    "train.validate_every=null",
    "train.checkpoint_seconds=1",
    "tracking=wandb tracking.mode=offline",
    "name=other",
    "experiment_name=elsewhere",
    "runs_dir=there",
    "eval.lengths=[1x]",
    "eval.protocols=[nonoverlapping]",
    "eval.max_targets=10",
    "encoding.base=10000",
    "model.name=another",
    "model.short_conv=null",
    "train.length_schedule=null",
    "attention.normalizer=softmax",
    "attention.gate=none",
    "attention.key_offset=false",
    "attention.token_shift=false",
    "attention.output_norm=false",
]
PLANT = "data.plant={{share:0.5,pairs:2,cue:1,alphabet:{},weight:1.0}}"
DEFINING = [
    "seed=1",
    "encoding.base=500",
    "train.tokens=5121",
    "train.precision=bf16",
    "model.mlp_ratio=2",
    "optim.weight_decay=0.2",
    "data.split.test=0.3",
    "tokenizer=bpe tokenizer.vocab_size=300",
    PLANT.format(8),
    PLANT.format(9),
    PLANT.format(8) + " context_length=40",
    PLANT.format(8).replace("{", "{kind:assignments,") + " context_length=40",
    "train.length_schedule=[[0.4,8],[0.6,16]]",
    "train.length_schedule=[[0.5,8],[0.5,16]]",
    "model.short_conv=4",
    "model.short_conv=3",
    "attention=mla",
    "attention.scale=logn",
    "attention.normalizer=sink",
    "attention.normalizer=off_by_one",
    "attention.normalizer=entmax",
    "attention.normalizer=asentmax",
    "attention.gate=head",
    "attention.gate=element",
    "encoding.fraction=0.5",
    "encoding.fraction=0.5 attention.key_offset=true",
    "attention.token_shift=true",
    "attention.output_norm=true",
    "positions=randomized",
    "encoding=sum encoding.parts=[alibi,rope]",
    "encoding=sum encoding.parts=[nope,{name:rope,base:500}]",
]


@pytest.mark.parametrize("overrides", FREE)
def test_what_does_not_define_a_run_leaves_its_hash(plan, overrides):
    assert plan(*overrides.split()).settings_hash == plan().settings_hash


def test_everything_that_defines_a_run_changes_its_hash(plan):
    hashes = [plan(*overrides.split()).settings_hash for overrides in DEFINING]
    assert len({plan().settings_hash, *hashes}) == len(DEFINING) + 1


def test_options_that_are_off_are_no_part_of_what_is_hashed(plan):
    """So that runs keep their names that were stored before there were these options."""
    attention = plan().run_settings.hashed_settings()["attention"]
    assert attention == {"name": "mha", "qk_norm": False, "window": None, "scale": "none"}


def test_a_stored_run_without_the_options_has_them_off(plan):
    settings = plan().run_settings.plain()
    for key in ("normalizer", "gate", "key_offset", "token_shift", "output_norm"):
        del settings["attention"][key]
    stored = RunSettings.model_validate(settings)
    assert stored.attention.plain() == plan().run_settings.attention.plain()
    assert stored.row() == plan().run_settings.row()


def test_the_kind_of_plant_that_was_first_is_no_part_of_what_is_hashed(plan):
    """So that runs keep their names that were stored before there were several."""
    plant = PLANT.format(8)
    assert plan(plant.replace("{", "{kind:tokens,")).settings_hash == plan(plant).settings_hash


def test_another_revision_of_the_encoding_is_another_run(plan, monkeypatch):
    before = plan().settings_hash
    monkeypatch.setattr(encoding_class("rope"), "revision", 99)
    assert plan().settings_hash != before


def test_a_corpus_counts_by_its_text_not_by_its_place(plan, corpus, working_folder):
    shutil.copytree(corpus, working_folder / "moved")
    assert plan(f"data.paths={working_folder / 'moved'}").settings_hash == plan().settings_hash


def test_another_text_is_another_run(plan, corpus, working_folder):
    shutil.copytree(corpus, working_folder / "moved")
    (working_folder / "moved" / "000.txt").write_text("other text")
    assert plan(f"data.paths={working_folder / 'moved'}").settings_hash != plan().settings_hash


@pytest.fixture
def begun_in_bf16(plan, monkeypatch):
    """A run that was begun in bf16, on a machine whose `auto` is fp32 now."""
    job = plan("train.precision=bf16")
    job.directory.mkdir(parents=True)
    monkeypatch.setattr(device, "has_hardware_bf16", lambda _: False)
    return job


def test_auto_finds_a_run_that_was_begun_in_the_other_precision(plan, begun_in_bf16):
    job = plan("train.precision=auto")
    assert job.directory == begun_in_bf16.directory
    assert job.settings_hash == begun_in_bf16.settings_hash


def test_auto_goes_on_in_the_precision_that_a_run_was_begun_in(plan, begun_in_bf16):
    job = plan("train.precision=auto")
    assert job.training.precision == "bf16"
    assert job.training.auto_precision == "fp32"
    assert job.run_settings.train.precision == "bf16"


def test_a_precision_that_is_said_is_another_run(plan, begun_in_bf16):
    job = plan("train.precision=fp32")
    assert job.training.auto_precision is None
    assert job.directory != begun_in_bf16.directory


def test_auto_prefers_a_run_in_the_precision_of_this_machine(plan, begun_in_bf16):
    job = plan("train.precision=fp32")
    job.directory.mkdir()
    assert plan("train.precision=auto").directory == job.directory


@pytest.mark.parametrize("overrides", [(), ("train.batch_tokens=130",)])
def test_steps_are_the_tokens_over_the_batch(plan, overrides):
    training = plan(*overrides).training
    assert training.batch_windows == 8  # of 16 tokens, no part of a ninth
    assert training.steps == tiny.STEPS


def test_a_training_has_a_step_at_least(plan):
    assert plan("train.tokens=128").training.steps == 1


def test_without_a_schedule_there_is_one_stage(plan):
    assert plan().training.stages == (Stage(40, 16),)


def test_a_schedule_ends_its_stages_by_their_shares(plan):
    training = plan("train.length_schedule=[[0.25,4],[0.5,8],[0.25,16]]").training
    assert training.stages == (Stage(10, 4), Stage(30, 8), Stage(40, 16))


def test_the_directory_is_named_by_what_is_trained_and_the_hash(plan):
    job = plan()
    assert job.directory == Path(f"runs/default/rope-d32L2H2M4-T16-s0-{job.settings_hash}")


def test_a_name_of_the_users_own_takes_the_readable_part(plan):
    job = plan("name=mine", "experiment_name=trial", "runs_dir=out")
    assert job.directory == Path(f"out/trial/mine-{job.settings_hash}")


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("[]", "is empty"),
        ("[0.5,16]", "wrong type"),
        ("[[a,8],[0.5,16]]", "wrong type"),
        ("[[0.5,8],[0.4,16]]", "the shares add up to 1"),
        ("[[0.5,16],[0.5,8]]", "lengths must grow up to context_length"),
        ("[[0.5,4],[0.5,8]]", "lengths must grow up to context_length"),
        ("[[0.5,6],[0.5,16]]", "does not divide the 128 tokens of a batch"),
        ("[[0.5,8],[0.5,32]]", "a whole number from 2 to 16"),
        ("[[0.001,8],[0.999,16]]", "a stage has none of the 40 steps"),
    ],
)
def test_a_schedule_of_lengths_that_cannot_be_is_refused(plan, schedule, problem):
    with pytest.raises(UserError) as caught:
        plan(f"train.length_schedule={schedule}")
    assert caught.value.key.startswith("train.length_schedule")
    assert problem in str(caught.value)

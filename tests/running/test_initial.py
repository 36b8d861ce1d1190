"""`train.init`: a finished run's weights in a model that may have another encoding, length or extension."""

import shutil
from pathlib import Path

import pytest
import tiny
import torch
from fake_runs import edit_json
from tiny_model import sha256

import posenc as px
from posenc.core.errors import UserError
from posenc.evaluation.extensions import build_extension
from posenc.model.decoder import initialize
from posenc.running.initial_weights import begin_with, initial_checkpoint
from posenc.running.model_parts import build_model
from posenc.running.stored_run import stored_run
from posenc.settings.tree import TokenizerSettings

BYTES = TokenizerSettings(name="bytes")
STEPS = 4  # of a training that begins with another run's weights


@pytest.fixture
def train(run_copy, corpus):
    """Train a few steps, beginning with the weights of `run_copy`."""

    def call(**changes):
        overrides = tiny.keywords(corpus) | {"encoding": "rope"}
        overrides["train"] |= {"tokens": STEPS * 128, "init": str(run_copy), "lr": 1e-3}
        return px.train(**overrides | changes)

    return call


def weights(run):
    return {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}


def test_it_begins_with_the_weights_not_with_those_of_the_seed(train, run_copy):
    after, before = weights(train(encoding="nope")), weights(px.load(run_copy))
    distances = [float((after[name] - before[name]).norm() / before[name].norm()) for name in after]
    assert after.keys() == before.keys()
    assert 0 < max(distances) < 0.5  # a few steps away


def test_its_settings_say_what_it_began_with(train, run_copy):
    began = train(encoding="nope").config["train"]["began"]
    assert began == {
        "encoding": "rope",
        "context_length": 16,
        "tokens": tiny.STEPS * 128,
        "run": run_copy.name[-8:],
        "step": tiny.STEPS,
    }


def test_its_name_says_what_it_began_with(train):
    assert train(encoding="nope").name.startswith("rope-to-nope-")


def test_its_row_says_what_it_began_with(train, posenc):
    train(encoding="nope")
    assert "rope -> nope (0.000512M tokens)" in posenc("compare", "--allow-mixed").out


def test_the_same_beginning_is_the_same_run(train):
    assert train().path == train().path


def test_the_same_run_in_another_folder_is_the_same_beginning(train, run_copy):
    run = train()
    copy = run_copy.with_name(f"elsewhere-{run_copy.name[-8:]}")
    shutil.copytree(run_copy, copy)
    assert train(**{"train.init": str(copy)}).path == run.path


def test_another_beginning_is_another_run(train):
    run, other_seed = train(), train(seed=1)
    longer = train(**{"train.init": str(other_seed.path)})
    assert longer.path not in (run.path, other_seed.path)
    assert longer.name.startswith("rope-to-rope-to-rope-")


@pytest.fixture
def earlier(run_copy):
    """A second checkpoint of `run_copy`, which says that it is of step 7."""
    folder = run_copy / "checkpoints" / "step-00000007"
    shutil.copytree(run_copy / "checkpoints" / f"step-{tiny.STEPS:08d}", folder)
    edit_json(folder / "state.json", step=7, tokens=7 * 128)
    edit_json(folder / "manifest.json", **{"state.json": sha256(folder / "state.json")})
    return folder


def test_the_newest_checkpoint_may_be_named(train, run_copy):
    newest = run_copy / "checkpoints" / f"step-{tiny.STEPS:08d}"
    assert train(**{"train.init": str(newest)}).path == train().path


def test_an_earlier_checkpoint_is_another_run(train, earlier):
    run = train(**{"train.init": str(earlier)})
    assert run.path != train().path
    assert run.config["train"]["init"] == str(earlier)
    assert run.config["train"]["began"]["step"] == 7


def test_a_damaged_checkpoint_is_refused(train, earlier):
    edit_json(earlier / "state.json", tokens=1)
    with pytest.raises(UserError, match=r"is damaged: state\.json"):
        train(**{"train.init": str(earlier)})


def test_a_checkpoint_that_does_not_exist_is_refused(train, run_copy):
    newest = f"step-{tiny.STEPS:08d}"
    with pytest.raises(UserError, match=f"no such checkpoint(.|\n)*{newest}"):
        train(**{"train.init": str(run_copy / "checkpoints" / "step-00000008")})


def test_a_stopped_run_goes_on_without_the_first(train, run_copy):
    run = train()
    before = weights(run)
    initial = initial_checkpoint(str(run_copy), BYTES, [])
    begin_with(initial, run.path / "checkpoints", run.model)  # it has a checkpoint of its own
    assert all(torch.equal(parameter, before[name]) for name, parameter in run.model.named_parameters())


def test_an_unfinished_run_is_no_beginning(train, run_copy):
    edit_json(run_copy / "status.json", status="interrupted")
    with pytest.raises(UserError, match="is not finished"):
        train()


def test_runs_with_one_hash_are_named(train, run_copy):
    other = run_copy.parent.parent / "other" / run_copy.name
    shutil.copytree(run_copy, other)
    with pytest.raises(UserError, match=rf"names several runs\n.*runs/other/{run_copy.name}"):
        train(**{"train.init": run_copy.name[-8:]})


def test_weights_of_options_go_to_the_same_options(corpus, working_folder):
    """The sink stands before the slopes of ssmax, which were the first option without it."""
    settings = {**tiny.keywords(corpus), "encoding": "nope", "attention.scale": "ssmax"}
    first = px.train(**settings)
    second = px.train(**settings, **{"attention.normalizer": "sink", "train.init": str(first.path)})
    stored = stored_run(str(second.path), [])
    model = build_model(stored.settings, stored.shape, vocab_size=256)
    initialize(model, seed=0)
    begin_with(initial_checkpoint(str(first.path), BYTES, []), Path("nowhere"), model)
    sink, ssmax = model.options
    assert torch.equal(sink.s, torch.zeros_like(sink.s))
    assert torch.equal(ssmax.s, first.model.options[0].s)


EXTENSIONS = [
    "yarn",
    pytest.param("pi", marks=pytest.mark.slow),
    pytest.param("window", marks=pytest.mark.slow),
]
AT_FOUR_T = {"base_length": 16, "lengths": ["4x", "6x"], "max_targets": 100}


@pytest.mark.parametrize("extend", EXTENSIONS)
def test_an_extension_acts_in_training_as_in_evaluation(extend, train, run_copy):
    """The model before its first step is the trained one, extended at the window that it is trained at."""
    run = train(extend=extend, context_length=64, eval=AT_FOUR_T)
    stored = stored_run(str(run.path), [])
    model = build_model(stored.settings, stored.shape, vocab_size=256)
    begin_with(initial_checkpoint(str(run_copy), BYTES, []), Path("nowhere"), model)
    trained = px.load(run_copy).model
    extension = build_extension({"name": extend}, trained)
    tokens, pos = torch.randint(256, (2, 64)), torch.arange(64)
    with torch.no_grad():
        extended = trained(tokens, pos, encoding=extension.effective_encoding(64))
        assert torch.equal(model.eval()(tokens, pos), extended)
        assert not torch.allclose(trained(tokens, pos), extended, atol=1e-3)


def test_a_run_trained_with_an_extension_says_so(train):
    run = train(extend="yarn", context_length=64, eval=AT_FOUR_T)
    assert "rope-to-rope+yarn-" in run.name
    assert run.config["extend"]["name"] == "yarn"


def test_a_run_trained_with_an_extension_takes_no_other(train):
    run = train(extend="yarn", context_length=64, eval=AT_FOUR_T)
    with pytest.raises(UserError, match="it was trained with yarn"):
        px.evaluate(run, extend="pi")
    assert px.evaluate(run, eval={"lengths": ["8x"]}).records


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"train.init": "nowhere"}, "train.init=nowhere: there is no such folder"),
        ({"train.init": "RUN"}, "train.init: is needed: the finished run to begin with"),
        ({"model": {"d_model": 64, "n_layers": 2, "n_heads": 2}}, "(32, 32) there, (64, 64) here"),
        ({"model": {"d_model": 32, "n_layers": 1, "n_heads": 2}}, "blocks.1.attention.out.weight (32, 32)"),
        ({"attention.qk_norm": True}, "k_norm.weight missing there, (16,) here"),
        ({"tokenizer": "bpe", "tokenizer.vocab_size": 300}, "has tokenizer=bytes, this run bpe"),
        ({"extend": "yarnn"}, "did you mean: yarn"),
        ({"encoding": "alibi", "extend": "yarn"}, "does not apply to encoding=alibi"),
        # positions with gaps show the distances that `factor: auto` would make room for
        (
            {"extend": "pi", "positions": "pose", "context_length": 64},
            "extend=pi: changes nothing at 64 tokens: positions=pose shows distances below 128",
        ),
        (
            {"extend": "yarn", "positions": {"name": "offset", "max": 32}, "context_length": 64},
            "positions.max=32: a window has more tokens",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_written(changes, problem, train, working_folder):
    before = sorted(working_folder.rglob("*"))
    with pytest.raises(UserError) as caught:
        train(**changes)
    assert problem in str(caught.value)
    assert sorted(working_folder.rglob("*")) == before


def test_pose_and_an_extension_with_a_factor_train_together(train):
    run = train(
        extend={"name": "pi", "factor": 32}, positions="pose", context_length=64, eval={"lengths": ["1x"]}
    )
    assert run.config["extend"]["factor"] == 32
    (pose,) = [option for option in run.model.options if option.name == "pose"]
    assert pose.limit == run.model.encoding.shape.distances == 8 * 16


@pytest.fixture
def normed(corpus, working_folder):
    """A run whose queries and keys are normalised."""
    return px.train(**tiny.keywords(corpus), encoding="nope", **{"attention.qk_norm": True})


def test_qk_norm_is_part_of_the_run(normed, corpus):
    plain = px.train(**tiny.keywords(corpus), encoding="nope")
    assert plain.path != normed.path
    assert plain.config["attention"]["qk_norm"] is False


def test_qk_norm_is_learned(normed):
    q_norm = normed.model.blocks[0].attention.q_norm
    assert not torch.equal(q_norm.weight, torch.ones_like(q_norm.weight))


def test_qk_norm_takes_the_size_of_queries_and_keys_away(normed):
    tokens = torch.randint(256, (1, 8))
    with torch.no_grad():
        before = normed.model(tokens)
        normed.model.blocks[0].attention.qkv.weight[:64] *= 7.0  # of queries and keys
        assert torch.allclose(normed.model(tokens), before, atol=1e-4)

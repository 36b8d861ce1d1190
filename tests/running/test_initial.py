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
from posenc.running.build import build_model
from posenc.running.eval_job import begin_with, initial_run, stored_run


@pytest.fixture
def train(run_copy, corpus):

    def call(**changes):
        every = tiny.keywords(corpus) | {"encoding": "rope"}
        every["train"] |= {"tokens": 4 * 128, "init": str(run_copy), "lr": 1e-3}
        return px.train(**every | changes)

    return call


def weights(run):
    return {name: one.detach().clone() for name, one in run.model.named_parameters()}


def test_it_begins_with_the_weights_and_says_so(train, run_copy, posenc):
    before = px.load(run_copy)
    dropped = train(encoding="nope")
    assert dropped.name.startswith("rope-to-nope-")
    began = dropped.config["train"]["began"]
    assert began["encoding"] == "rope" and began["context_length"] == 16
    assert began["run"] == run_copy.name[-8:] and began["step"] == tiny.STEPS
    own, theirs = weights(dropped), weights(before)
    far = [float((own[name] - theirs[name]).norm() / theirs[name].norm()) for name in own]
    assert own.keys() == theirs.keys() and 0 < max(far) < 0.5  # four steps from there, not from the seed
    table = posenc("compare", "--allow-mixed").out
    assert "rope -> nope (0.000512M tokens)" in table


def test_who_it_begins_with_is_part_of_the_run(train, run_copy):
    one = train()
    assert train().path == one.path  # found finished
    again = run_copy.with_name(f"elsewhere-{run_copy.name[-8:]}")
    shutil.copytree(run_copy, again)
    assert train(**{"train.init": str(again)}).path == one.path  # the same run from another folder
    other = train(seed=1)
    assert other.path != one.path
    longer = train(**{"train.init": str(other.path)})
    assert longer.path not in (one.path, other.path)
    assert longer.name.startswith("rope-to-rope-to-rope-")


def test_one_of_its_checkpoints_can_be_named(train, run_copy, posenc):
    folder = run_copy / "checkpoints"
    newest = folder / f"step-{tiny.STEPS:08d}"
    same = train(**{"train.init": str(newest)})
    assert same.path == train().path  # the newest, by another name
    earlier = folder / "step-00000007"
    shutil.copytree(newest, earlier)
    edit_json(earlier / "state.json", step=7, tokens=7 * 128)
    with pytest.raises(UserError, match=r"is damaged: state\.json"):
        train(**{"train.init": str(earlier)})
    edit_json(earlier / "manifest.json", **{"state.json": sha256(earlier / "state.json")})
    other = train(**{"train.init": str(earlier)})
    began = other.config["train"]["began"]
    assert other.path != same.path and (began["step"], began["tokens"]) == (7, 7 * 128)
    assert other.config["train"]["init"] == str(earlier)
    with pytest.raises(UserError, match=f"no such checkpoint(.|\n)*{newest.name}"):
        train(**{"train.init": str(folder / "step-00000008")})


def test_a_stopped_one_goes_on_without_the_first(train, run_copy):
    run = train()
    model, begin = run.model, initial_run(str(run_copy), {"name": "bytes"}, [])
    now = weights(run)
    begin_with(begin, run.path / "checkpoints", model)  # it has a checkpoint of its own
    assert all(torch.equal(one, now[name]) for name, one in model.named_parameters())
    edit_json(run_copy / "status.json", status="interrupted")
    with pytest.raises(UserError, match="is not finished"):  # an unfinished run is no beginning
        train(seed=1)


@pytest.mark.parametrize(
    "extend", ["yarn", *(pytest.param(one, marks=pytest.mark.slow) for one in ("pi", "window"))]
)
def test_an_extension_acts_in_training_as_in_evaluation(extend, train, run_copy):
    """The model before its first step is the trained one, extended at the window that it is trained at."""
    evaluation = {"base_length": 16, "lengths": ["4x", "6x"], "max_targets": 100}
    run = train(extend=extend, context_length=64, eval=evaluation)
    assert f"rope-to-rope+{extend}-" in run.name and run.config["extend"]["name"] == extend
    stored = stored_run(str(run.path), [])
    mine = build_model(stored.settings, stored.shape, vocab_size=256)
    begin_with(initial_run(str(run_copy), {"name": "bytes"}, []), Path("nowhere"), mine)
    before = px.load(run_copy).model
    acting = build_extension({"name": extend}, before)
    tokens, pos = torch.randint(256, (2, 64)), torch.arange(64)
    with torch.no_grad():
        want = before(tokens, pos, encoding=acting.effective_encoding(64))
        assert torch.equal(mine.eval()(tokens, pos), want)
        assert not torch.allclose(before(tokens, pos), want, atol=1e-3)
    with pytest.raises(UserError, match=f"it was trained with {extend}"):
        px.evaluate(run, extend="pi")
    assert px.evaluate(run, eval={"lengths": ["8x"]}).records


def test_what_does_not_fit_is_said_before_anything_is_written(train, place):
    before = sorted(place.rglob("*"))
    for changes, words in (
        ({"train.init": "nowhere"}, "train.init=nowhere: there is no such folder"),
        ({"model": {"d_model": 64, "n_layers": 2, "n_heads": 2}}, "(32, 32) there, (64, 64) here"),
        ({"model": {"d_model": 32, "n_layers": 1, "n_heads": 2}}, "blocks.1.attention.out.weight (32, 32)"),
        ({"attention.qk_norm": True}, "k_norm.weight missing there, (16,) here"),
        ({"tokenizer": "bpe", "tokenizer.vocab_size": 300}, "has tokenizer=bytes, this run bpe"),
        ({"extend": "yarnn"}, "did you mean: yarn"),
        ({"encoding": "alibi", "extend": "yarn"}, "does not apply to encoding=alibi"),
    ):
        with pytest.raises(UserError) as caught:
            train(**changes)
        assert words in str(caught.value) and sorted(place.rglob("*")) == before


def test_qk_norm_is_learned_and_part_of_the_run(corpus, place):
    every = tiny.keywords(corpus) | {"encoding": "nope"}
    plain, normed = px.train(**every), px.train(**every, **{"attention.qk_norm": True})
    assert plain.path != normed.path and "qk_norm" not in plain.config["attention"]
    q = normed.model.blocks[0].attention.q_norm
    assert q is not None and not torch.equal(q.weight, torch.ones_like(q.weight))
    tokens = torch.randint(256, (1, 8))
    with torch.no_grad():
        before = normed.model(tokens)
        normed.model.blocks[0].attention.qkv.weight[:64] *= 7.0  # of queries and keys: normalised away
        assert torch.allclose(normed.model(tokens), before, atol=1e-4)

"""Any model as a subject: protocols on a function or a module that is given."""

import math
import shutil
from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F
from fake_runs import only_run
from in_process import working_in
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers
from torch import nn

import posenc as px
from posenc.data.tokenizers import Tokenizer
from posenc.results.records import REFERENCES


def settings(corpus, **changes):
    """Return the settings of an evaluation of a model that is given."""
    of_a_run = tiny.keywords(corpus)
    keys = ("data", "data.paths", "context_length", "device", "eval")
    return {key: of_a_run[key] for key in keys} | changes


def bigram(tokens):
    """Return logits (B, T, 256) that prefer the same byte again."""
    return 2.0 * F.one_hot(tokens, 256).float()


# --- A trained model, given as a function
PROTOCOLS = ["fixed-target", "nonoverlapping", "positions", "sliding", "far-copy", "induction"]


@pytest.fixture(scope="module")
def as_run_and_as_function(tmp_path_factory, trained_once, corpus, shared_cache):
    """The records of a run, and those of its model as a function, in their order."""
    folder = tmp_path_factory.mktemp("as_function")
    shutil.copytree(trained_once, folder / "runs")
    run_path = only_run(folder / "runs")
    evaluation = {"lengths": ["1x", "2x", "4x"], "max_targets": 400, "protocols": PROTOCOLS}
    with working_in(folder, shared_cache):
        run = px.load(run_path)
        as_run = px.evaluate(run, eval=evaluation)
        as_function = px.evaluate(run.model, name="mine", **settings(corpus, eval=evaluation))
    return without_references(as_run.records), without_references(as_function.records)


def without_references(records):
    """Return the records of the model itself."""
    return [record for record in records if record["protocol"] not in REFERENCES]


def test_a_function_is_measured_on_the_targets_of_the_run(as_run_and_as_function):
    for of_run, of_function in zip(*as_run_and_as_function, strict=True):
        for key in ("protocol", "window", "targets_hash", "documents"):
            assert of_function[key] == of_run[key]


def test_a_function_has_the_losses_of_the_run(as_run_and_as_function):
    for of_run, of_function in zip(*as_run_and_as_function, strict=True):
        assert of_function["nats"] == pytest.approx(of_run["nats"], abs=1e-6)
        assert (of_function["ci95"] is None) == (of_run["ci95"] is None)


@pytest.fixture
def bigram_beside_a_run(run_copy, corpus):
    """A run, and the evaluation of a function of whose training nothing is known."""
    px.evaluate(bigram, name="mine", **settings(corpus))


@pytest.mark.usefixtures("bigram_beside_a_run")
def test_a_function_is_not_ranked_beside_trained_runs():
    labels = [[row.label for row in table.rows] for table in px.load_runs().compare().tables]
    assert sorted(labels) == [["mine"], ["rope"]]


@pytest.mark.usefixtures("bigram_beside_a_run")
def test_a_function_stands_beside_trained_runs_on_request(posenc):
    result = posenc("compare", "--allow-mixed")
    assert result.code == 0
    assert "mine" in result.out
    assert "rope" in result.out


# --- Functions
def letter_tokenizer():
    """Return a tokenizer of the library, with 127 letters."""
    ids = {chr(i): i for i in range(32, 127)} | {"\n": 0, "?": 1}
    library = LibraryTokenizer(models.WordLevel(ids, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return library


def uniform(tokens):
    return torch.zeros(*tokens.shape, 127)


def test_a_function_with_its_own_tokenizer(working_folder, corpus):
    run = px.evaluate(uniform, **settings(corpus, name="uniform", tokenizer=letter_tokenizer()))
    losses = {round(record["nats"], 5) for record in without_references(run.records)}
    assert losses == {round(math.log(127), 5)}
    assert run.config["tokenizer"]["name"] == "hf"


def test_a_function_that_is_given_again_is_measured_again_as_the_same_run(working_folder, corpus):
    shapes = []

    def counted(tokens):
        shapes.append(tokens.shape)
        return bigram(tokens)

    first = px.evaluate(counted, **settings(corpus))
    calls_of_first = len(shapes)
    second = px.evaluate(counted, **settings(corpus))
    assert first.name.startswith("counted-T16-")
    assert second.path == first.path
    assert len(shapes) == 2 * calls_of_first


def test_another_function_of_the_same_name_is_another_run(working_folder, corpus):
    first = px.evaluate(bigram, name="mine", **settings(corpus))
    second = px.evaluate(lambda tokens: 2 * bigram(tokens), name=".mine", **settings(corpus))
    assert second.path != first.path
    assert second.name.startswith("mine-T16-")


# --- Modules
class LearnedPositions(nn.Module):
    """A model that sees its 40 positions alone."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(40, 8)
        self.out = nn.Linear(8, 256)

    def forward(self, tokens):
        vectors = self.positions(torch.arange(tokens.shape[1]))
        logits = self.out(vectors).expand(len(tokens), -1, -1)
        return type("Output", (), {"logits": logits})  # as `transformers` gives them


@pytest.fixture(scope="module")
def run_of_40_positions(tmp_path_factory, corpus, shared_cache):
    """A module with 40 positions, measured in windows of 16, 32 and 64 tokens."""
    evaluation = tiny.keywords(corpus)["eval"] | {"protocols": ["fixed-target"]}
    with working_in(tmp_path_factory.mktemp("forty"), shared_cache):
        return px.evaluate(LearnedPositions(), **settings(corpus, eval=evaluation))


def test_where_the_positions_of_a_module_end_there_is_a_reason_in_place_of_a_number(run_of_40_positions):
    records = without_references(run_of_40_positions.records)
    assert [record["nats"] is None for record in records] == [False, False, True]
    assert records[-1]["note"].startswith("n/a: IndexError")


def test_the_parameters_of_a_module_are_counted(run_of_40_positions):
    assert run_of_40_positions.run.parameters == 40 * 8 + 8 * 256 + 256


@pytest.fixture
def module():
    """A model in bf16, of which one part is not in training mode."""
    model = nn.Sequential(nn.Embedding(256, 8), nn.Dropout(0.5), nn.Linear(8, 256)).bfloat16()
    model[1].eval()
    return model


def test_a_module_is_measured_without_dropout(working_folder, corpus, module):
    module.train()
    losses = []
    for _ in range(2):
        run = px.evaluate(module, **settings(corpus, name="mine"))
        losses.append([record["nats"] for record in run.records])
    assert losses[0] == losses[1]


def test_the_mode_of_every_part_of_a_module_stays(working_folder, corpus, module):
    px.evaluate(module, **settings(corpus, name="mine"))
    embedding, dropout, linear = module
    assert module.training
    assert embedding.training
    assert not dropout.training
    assert linear.training


def test_the_precision_of_a_module_is_told(working_folder, corpus, module):
    run = px.evaluate(module, **settings(corpus, name="mine"))
    assert run.run.facts["precision"] == "bf16"


def test_a_module_takes_a_tokenizer_of_posenc(working_folder, corpus, module):
    run = px.evaluate(module, **settings(corpus, name="mine", tokenizer=Tokenizer("bytes")))
    assert run.config["tokenizer"]["name"] == "bytes"


# --- What is refused
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extend": "yarn"}, "extend: does not apply to a model that is given"),
        ({"encoding": "rope"}, "encoding: does not apply"),
        ({"context_length": 1}, "context_length=1: too small"),
        ({"tokenizer": 3}, "tokenizer=int: is no tokenizer"),
        ({"eval": {"protocols": ["recall"]}}, "recall: asks for what posenc planted"),
    ],
)
def test_a_setting_that_does_not_fit_a_given_model_is_refused(working_folder, corpus, changes, message):
    with pytest.raises(px.UserError, match=message):
        px.evaluate(bigram, **settings(corpus, **changes))
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        pytest.param(lambda tokens: tokens, "gives no logits", id="tokens"),
        pytest.param(
            lambda tokens: bigram(tokens)[:, :-1],
            r"logits \(1, 15, 256\): are none of tokens \(1, 16\)",
            id="a token less",
        ),
        pytest.param(
            lambda tokens: bigram(tokens)[..., :9], "the tokenizer has 256 tokens", id="small vocabulary"
        ),
    ],
)
def test_a_function_that_gives_no_logits_of_its_tokens_is_refused(working_folder, corpus, function, message):
    with pytest.raises(px.UserError, match=message):
        px.evaluate(function, **settings(corpus))
    assert not Path("runs").exists()


def sees_all(tokens):
    """Prefer the bytes that a whole text has, of which half are later ones."""
    shares = F.one_hot(tokens, 256).float().mean(dim=1, keepdim=True)
    return bigram(tokens) + 20 * shares.expand(-1, tokens.shape[1], -1)


def sees_next(tokens):
    """Prefer the byte that is asked for, as a model does whose targets are shifted twice."""
    return bigram(tokens.roll(-1, dims=1))


class SeesAll(nn.Module):
    """A model in bf16 whose attention has no mask."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(256, 32).bfloat16()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True).bfloat16()

    def forward(self, tokens):
        x = self.embedding(tokens)
        # Five times, or the attention of small weights moves hardly more than bf16 rounds.
        x = x + 5 * self.attention(x, x, x, need_weights=False)[0]
        return x @ self.embedding.weight.T


@pytest.mark.parametrize("subject", [sees_all, sees_next, SeesAll()], ids=["all", "next", "module"])
def test_a_function_that_sees_later_tokens_is_refused(working_folder, corpus, subject):
    with pytest.raises(px.UserError, match=r"subject=mine: sees later tokens: logits move by \d"):
        px.evaluate(subject, **settings(corpus, name="mine"))
    assert not Path("runs").exists()


def test_a_leak_of_one_token_is_found_in_a_long_text(working_folder, corpus):
    with pytest.raises(px.UserError, match="sees later tokens"):
        px.evaluate(sees_next, **settings(corpus, context_length=512))


def test_a_function_that_draws_numbers_is_not_said_to_see_later_tokens(working_folder, corpus):
    def noisy(tokens):
        return bigram(tokens) + torch.randn(*tokens.shape, 256)

    run = px.evaluate(noisy, **settings(corpus))
    assert without_references(run.records)

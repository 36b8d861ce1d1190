"""Any model as a subject: protocols on a function or a module, laws on somebody's bias or rotation."""

import json
import math
from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import nn

import posenc as px
from posenc.data.tokenizers import Tokenizer
from posenc.laws import LAWS


def asked(corpus, **changes):
    every = tiny.keywords(corpus)
    return {key: every[key] for key in ("data", "data.paths", "context_length", "device", "eval")} | changes


def bigram(tokens):
    return 2.0 * F.one_hot(tokens, 256).float()


def test_a_trained_model_given_as_a_function_has_the_numbers_of_its_run(run_copy, corpus, posenc):
    run = px.load(run_copy)
    protocols = ["fixed-target", "nonoverlapping", "positions", "sliding", "far-copy", "induction"]
    every = {"lengths": ["1x", "2x", "4x"], "max_targets": 400, "protocols": protocols}
    own = [record for record in px.evaluate(run, eval=every).records if record["protocol"] != "trigram"]
    given = px.evaluate(run.model, name="mine", **asked(corpus, eval=every))
    for mine, theirs in zip(given.records, own, strict=True):
        assert all(mine[key] == theirs[key] for key in ("protocol", "window", "targets_hash", "documents"))
        assert mine["nats"] == pytest.approx(theirs["nats"], abs=1e-6)
        assert (mine["ci95"] is None) == (theirs["ci95"] is None)
    # of its training nothing is known: no ranking beside trained runs
    apart = px.load_runs().compare().tables
    assert sorted([row.label for row in table.rows] for table in apart) == [["mine"], ["rope"]]
    both = posenc("compare", "--allow-mixed")
    assert both.code == 0 and "mine" in both.out and "rope" in both.out


def test_a_function_with_its_own_tokenizer(working_folder, corpus):
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = {chr(i): i for i in range(32, 127)} | {"\n": 0, "?": 1}
    letters = Tokenizer(models.WordLevel(ids, unk_token="?"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    given = asked(corpus, name="uniform", tokenizer=letters)
    uniform = px.evaluate(lambda tokens: torch.zeros(*tokens.shape, 127), **given)
    assert {round(record["nats"], 5) for record in uniform.records} == {round(math.log(127), 5)}
    assert uniform.config["tokenizer"]["name"] == "hf"


def test_another_model_is_another_run_and_the_same_is_measured_anew(working_folder, corpus):
    calls = []

    def counted(tokens):
        calls.append(tokens.shape)
        return bigram(tokens)

    first = px.evaluate(counted, **asked(corpus))
    before = len(calls)
    again = px.evaluate(counted, **asked(corpus))
    assert again.path == first.path and len(calls) == 2 * before and first.name.startswith("counted-T16-")
    other = px.evaluate(lambda tokens: 2 * bigram(tokens), name=".counted", **asked(corpus))
    assert other.path != first.path and other.name.startswith("counted-T16-")


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions, self.out = nn.Embedding(40, 8), nn.Linear(8, 256)

    def forward(self, tokens):
        logits = self.out(self.positions(torch.arange(tokens.shape[1]))).expand(len(tokens), -1, -1)
        return type("Output", (), {"logits": logits})  # as `transformers` gives them


def test_a_module_whose_positions_end_has_a_reason_in_place_of_a_number(working_folder, corpus):
    every = tiny.keywords(corpus)["eval"] | {"protocols": ["fixed-target"]}
    run = px.evaluate(Table(), **asked(corpus, eval=every))
    assert [record["nats"] is None for record in run.records] == [False, False, True]
    assert (run.records[-1]["note"] or "").startswith("n/a: IndexError")
    assert run.run.parameters == 40 * 8 + 8 * 256 + 256


def test_a_module_keeps_its_mode_and_precision_and_takes_a_runs_tokenizer(working_folder, corpus):
    model = nn.Sequential(nn.Embedding(256, 8), nn.Dropout(0.5), nn.Linear(8, 256)).bfloat16()
    model[1].eval()
    given = asked(corpus, name="mine", tokenizer=Tokenizer("bytes"))
    run = px.evaluate(model, **given)
    assert [one.training for one in (model, *model)] == [True, True, False, True]
    assert [r["nats"] for r in px.evaluate(model, **given).records] == [r["nats"] for r in run.records]
    assert run.run.facts is not None and run.run.facts["precision"] == "bf16"
    assert run.config["tokenizer"]["name"] == "bytes"


def test_what_is_refused(working_folder, corpus):
    for function, changes, says in (
        (bigram, {"extend": "yarn"}, "extend: does not apply to a model that is given"),
        (bigram, {"encoding": "rope"}, "encoding: does not apply"),
        (bigram, {"context_length": 1}, "context_length=1: too small"),
        (bigram, {"tokenizer": 3}, "tokenizer=int: is no tokenizer"),
        (bigram, {"eval": {"protocols": ["recall"]}}, "recall: asks for what posenc planted"),
        (lambda tokens: tokens, {}, "gives no logits"),
        (lambda tokens: bigram(tokens)[:, :-1], {}, r"logits \(1, 15, 256\): are none of tokens \(1, 16\)"),
        (lambda tokens: bigram(tokens)[..., :9], {}, "the tokenizer has 256 tokens"),
    ):
        with pytest.raises(px.UserError, match=says):
            px.evaluate(function, **asked(corpus, **changes))
        assert not Path("runs").exists()


THEIRS = '''
import torch
from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias
from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

class FromTheEnd(AlibiPositionalBias):
    """Positions relative to the window's end."""
    def forward(self, i, j):
        return (-self.slopes * torch.arange(j).flip(0).float().sqrt()).expand(-1, i, -1)

class Scaled(AlibiPositionalBias):
    def __init__(self, heads, gain):
        super().__init__(heads)

class Buckets(RelativePositionBias):
    def __init__(self, heads):
        super().__init__(scale=1.0, causal=True, heads=heads)

angles = RotaryEmbedding(8)

def rotary(x, pos):
    return apply_rotary_pos_emb(x, *angles(pos))

def stretched(x, pos):
    """By the length of the text: as dynamic NTK without its cache."""
    return apply_rotary_pos_emb(x, *angles(pos * (1 + 0.01 * len(pos))))

def alibi(q_pos, k_pos):
    slopes = 2.0 ** -torch.tensor([2.0, 4, 6, 8])
    bias = -slopes[:, None, None] * (q_pos[:, None] - k_pos[None])
    return bias.masked_fill(k_pos[None] > q_pos[:, None], float("-inf"))

def rounded(q_pos, k_pos):
    return alibi(q_pos, k_pos).bfloat16()

narrow = lambda q_pos, k_pos: torch.zeros(3)
odd = lambda a, b: a
'''
XT = "x_transformers.x_transformers:AlibiPositionalBias"


@pytest.mark.parametrize(
    ("words", "fails"),
    [
        ([XT, "encoding=alibi"], set()),
        (["theirs.py:alibi", "encoding=alibi"], set()),
        (["theirs.py:rounded", "encoding=alibi"], {"same"}),
        (["theirs.py:Buckets"], set()),  # T5's, with weights drawn by torch
        (["theirs.py:FromTheEnd"], {"prefix", "blocks"}),
        # angles in float32: logits move by 2e-4 at 65 536
        (["theirs.py:rotary", "encoding=rope"], {"shift"}),
        (["theirs.py:rotary", "encoding=rope", "encoding.base=500"], {"shift", "same"}),
        (["theirs.py:stretched"], {"prefix", "blocks", "float32"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_laws_of_a_module(working_folder, posenc, monkeypatch, words, fails):
    """Healthy ones by all laws, broken ones by those that tell them apart."""
    pytest.importorskip("x_transformers")
    laws = [law for law in LAWS if not fails or law in ("causal", "prefix", "shift", "blocks", "float32")]
    monkeypatch.setattr("posenc.running.law_check.LAWS", {law: LAWS[law] for law in laws})
    (working_folder / "theirs.py").write_text(THEIRS)
    done = posenc("check", "--module", *words, "--json")
    verdicts = {one["law"]: one["verdict"] for one in json.loads(done.out)["verdicts"]}
    assert {law for law, verdict in verdicts.items() if verdict == "fail"} == fails
    assert done.code == bool(fails)
    assert [*verdicts] == [*laws, *(["same"] if len(words) > 1 else [])]


def test_modules_that_are_refused(working_folder, posenc):
    pytest.importorskip("x_transformers")
    (working_folder / "theirs.py").write_text(THEIRS)
    for words, says in (
        (["theirs.py:odd"], "takes (a, b)"),
        (["theirs.py:narrow"], "fails at 8 positions of 4 heads"),
        (["theirs.py:Scaled"], "needs gain"),
        (["theirs.py:nothing"], "cannot be imported (AttributeError"),
        (["nowhere.at.all:f"], "cannot be imported (ModuleNotFoundError"),
        (["theirs.py:alibi", "--all"], "leave out one of the two"),
        (["theirs.py:alibi", "encoding=alibbi"], "did you mean: alibi"),
        (["theirs.py:alibi", "train.lr=1"], "has no effect on the laws"),
    ):
        done = posenc("check", "--module", *words)
        assert done.code == 2 and says in done.err and not done.out

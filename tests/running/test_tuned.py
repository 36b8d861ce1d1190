"""`experiment=tuning` and `train.lr=tuned`: rates judged on validation documents by seeds of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tiny

import posenc as px
from posenc.core.errors import UserError

Posenc = Callable[..., tiny.Result]


@pytest.fixture
def words(place, corpus):
    return [*tiny.TINY, f"data.paths={corpus}", "train.tokens=1024"]


def test_the_best_rate_on_validation_documents_is_read(words, posenc):
    tuning = [word for word in words if not word.startswith("eval.lengths")]
    done = posenc("train", "-m", "experiment=tuning", "encoding=rope", "train.lr=1e-5,3e-3,3.0", *tuning)
    assert done.code in (0, 1), done.err  # the highest may diverge
    losses = {}
    for run in px.load_runs("runs/tuning"):
        assert run.seed == 100 and {record["split"] for record in run.records} <= {"validation"}
        assert run.config is not None
        if run.records:
            losses[run.config["train"]["lr"]] = run.records[0]["nats"]
    assert min(losses, key=lambda rate: losses[rate]) == 3e-3
    tuned = posenc("train", "encoding=rope", "train.lr=tuned", *words)
    assert tuned.code == 0, tuned.err
    (run,) = px.load_runs("runs/default")
    assert run.config["train"]["lr"] == 3e-3
    assert "on validation documents, seeds 100" in run.config["train"]["tuned"]
    again = posenc("train", "encoding=rope", "train.lr=3e-3", *words)  # the same run, however it was chosen
    assert again.code == 0 and "already finished" in again.err

    for changes, says in (
        (["seed=100"], "the rate was chosen by this seed"),
        (["encoding=alibi"], "0 rates were tried with these settings"),
        (["train.tokens=2048"], "posenc train -m experiment=tuning"),
        (["train.lr=fast"], "a number above 0, or tuned"),
    ):
        given = ["encoding=rope", "train.lr=tuned", *words]
        kept = [one for one in given if one.split("=")[0] not in {c.split("=")[0] for c in changes}]
        refused = posenc("train", *kept, *changes)
        assert refused.code == 2 and says in refused.err, refused.err


@pytest.mark.parametrize("rate", ["fast", True, None, [1]])
def test_a_rate_that_is_none(rate, corpus, place):
    every = tiny.keywords(corpus)
    every["train"] |= {"lr": rate}
    with pytest.raises(UserError) as caught:
        px.train(encoding="rope", **every)
    assert "train.lr" in str(caught.value)

"""What `posenc bench` measures: which cases a command line makes, and how many operations a token takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from posenc.cli.bench import Case, base_name, cases, with_bases
from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine
from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.model.decoder import (
    Decoder,
    ModelShape,
    count_parameters,
    forward_flops,
    product_weights,
    training_flops,
)
from posenc.running.build import build_model
from posenc.training.loop import NextTokenLoss, gradients

LENGTH, WINDOWS, VOCABULARY = 16, 3, 97
SHAPE = ModelShape("small", d_model=32, n_layers=2, n_heads=2, mlp_ratio=3)


def chosen(*overrides: str, lengths: str = "8x") -> list[Case]:
    jobs = compose_jobs("train", CommandLine([*overrides, "device=cpu"], True, None, False, False)).jobs
    return cases(jobs, repeats=3, lengths=lengths)


def model(*overrides: str) -> Decoder:
    (one,) = chosen(*overrides, f"context_length={LENGTH}")
    return build_model(one.asked["settings"], SHAPE, VOCABULARY)


def counted(subject: Decoder, *, training: bool) -> float:
    """Operations a token by torch's own count of what ran."""
    tokens = torch.randint(VOCABULARY, (WINDOWS, LENGTH), generator=torch.Generator().manual_seed(0))
    pos = subject.positions(LENGTH, generator_for(0, "test"))
    with FlopCounterMode(display=False) as counter:
        if training:
            gradients(NextTokenLoss(subject), tokens, tokens, pos, precision="fp32", grad_clip=1.0)
        else:
            with torch.no_grad():
                subject(tokens, pos)
    return counter.get_total_flops() / tokens.numel()


@pytest.mark.parametrize(
    "overrides", [["encoding=nope"], ["encoding=rope"], ["encoding=alibi"], ["attention=mla"]]
)
def test_operations_are_those_that_run(overrides: list[str]) -> None:
    """Exactly in a forward pass; a step also makes the norms' gradients by products, under a hundredth."""
    subject = model(*overrides)
    assert counted(subject, training=False) == forward_flops(subject, LENGTH)
    in_training = counted(subject, training=True)
    assert training_flops(subject, LENGTH) <= in_training <= 1.01 * training_flops(subject, LENGTH)


def test_what_an_encoding_adds_is_not_counted() -> None:
    plain, heavy = model("encoding=nope"), model("encoding=transformer_xl")
    assert training_flops(heavy, LENGTH) == training_flops(plain, LENGTH)
    assert counted(heavy, training=False) > forward_flops(heavy, LENGTH)


def test_six_n_and_the_attention() -> None:
    """12 d^2 a layer at an MLP four times as wide, the embedding once; norms are not multiplied with."""
    subject = model("encoding=nope")
    norms = (2 * SHAPE.n_layers + 1) * SHAPE.d_model
    assert product_weights(subject) == count_parameters(subject)["total"] - norms
    expected = 6 * product_weights(subject) + 12 * SHAPE.n_layers * SHAPE.d_model * LENGTH
    assert training_flops(subject, LENGTH) == expected


def test_commas_make_cases_and_each_group_gets_its_base() -> None:
    found = with_bases(chosen("encoding=rope,alibi", "context_length=32,64"))
    told = [(one.label, one.asked["settings"]["context_length"], one.asked["windows"]) for one in found]
    base = base_name()
    assert told == [
        *[(name, 32, [256]) for name in (base, "rope", "alibi")],
        *[(name, 64, [512]) for name in (base, "rope", "alibi")],
    ]


def test_seeds_and_repetitions_make_no_case_of_their_own() -> None:
    assert len(chosen("encoding=rope,rope", "seed=0,1")) == 1
    assert len(with_bases(chosen(f"encoding={base_name()}"))) == 1


def test_labels_say_what_differs() -> None:
    labels = [one.label for one in chosen("encoding=rope", "encoding.base=100.0,500.0", "train.lr=1e-3")]
    assert labels == ["rope encoding.base=100.0", "rope encoding.base=500.0"]


def test_the_base_has_the_same_options_but_no_drawn_positions() -> None:
    (one,) = chosen("encoding=rope", "positions=randomized", "positions.max=600", "attention.window=8")
    own, base = one.asked["settings"], one.base().asked["settings"]
    assert own["positions"]["name"] == "randomized" and base["positions"] == {"name": "contiguous"}
    assert base["attention"] == own["attention"] and base["encoding"] == {"name": base_name()}


@pytest.mark.parametrize(
    ("lengths", "windows"), [("none", []), ("1x,8x", [64, 512]), ("[512, 64, 1x]", [64, 512]), ("0.5x", [32])]
)
def test_lengths(lengths: str, windows: list[int]) -> None:
    assert chosen("encoding=rope", lengths=lengths)[0].asked["windows"] == windows


def test_a_vocabulary_needs_no_corpus() -> None:
    def vocabulary(*overrides: str) -> Any:
        return chosen("encoding=rope", *overrides)[0].asked["vocab_size"]

    assert vocabulary() == 256
    assert vocabulary("tokenizer=bpe", "tokenizer.vocab_size=3000", "data=wikitext103") == 3000
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size"):
        vocabulary("tokenizer=bpe", "tokenizer.vocab_size=10")

"""Latent attention through `posenc train`: stopped and continued, measured again, refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import tiny_model
from latent import CONTIGUOUS, RANKS, SHAPE, VOCABULARY, WIDTH, T

from posenc.data import TokenStore
from posenc.encodings import build_encoding
from posenc.model.attention import AttentionChoice
from posenc.model.decoder import Decoder, initialize
from posenc.running.build import build_decoder


def tiny_mla(store: TokenStore, seed: int, encoding: str = "rope") -> Decoder:
    shape = tiny_model.SHAPE
    choice = AttentionChoice("mla", {"kv_rank": 12, "q_rank": None, "rope_dim": None})
    sizes = {"d_model": 32, "n_heads": 2, "head_dim": choice.encoded_width(shape.head_dim), "n_layers": 2}
    own = build_encoding(encoding, train_length=tiny_model.T, **sizes)
    model = Decoder(shape, store.vocab_size, own, attention=choice)
    initialize(model, seed)
    return model


@pytest.fixture
def store(place: Path, corpus: Path) -> TokenStore:
    return tiny_model.tokens_of(corpus)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stopped_and_continued_is_not_stopped(store: TokenStore, tmp_path: Path, precision: str) -> None:
    tiny_model.run(tiny_mla(store, 0), store, tmp_path / "whole", precision=precision)
    for stop in (1, tiny_model.STEPS // 2):
        folder = tmp_path / f"stop-{stop}"
        tiny_model.run(tiny_mla(store, 0), store, folder, stop_after=stop, precision=precision)
        # another seed's model: everything has to come from the checkpoint
        ended = tiny_model.run(tiny_mla(store, 9), store, folder, precision=precision)
        assert (ended.status, ended.step) == ("finished", tiny_model.STEPS)
        assert tiny_model.on_disk(folder) == tiny_model.on_disk(tmp_path / "whole")


Posenc = Callable[..., tiny.Result]


@pytest.mark.parametrize("encoding", ["alibi", "sinusoidal", "t5", "shaw", "xpos"])
def test_encodings_without_a_part_of_their_own_are_refused(train: Posenc, place: Path, encoding: str) -> None:
    refused = train("attention=mla", f"encoding={encoding}")
    assert refused.code == 2 and refused.out == ""
    for text in ("attention=mla", f"encoding={encoding}", "nope, rope"):
        assert text in refused.err
    assert len(refused.err.splitlines()) < 24 and not list(place.iterdir())


@pytest.mark.parametrize(
    "overrides, says",
    [
        (["attention.rope_dim=3"], ["rope_dim=3", "even"]),
        (["attention.rope_dim=0"], ["rope_dim=0", "at least 2"]),
        (["attention.rope_dim=-2"], ["rope_dim=-2"]),
        (["attention.rope_dim=wide"], ["attention.rope_dim=wide", "a whole number"]),
        (["attention.kv_rank=0"], ["kv_rank=0", "1..d_model=32"]),
        (["attention.kv_rank=33"], ["kv_rank=33", "1..d_model=32"]),
        (["attention.q_rank=0"], ["q_rank=0", "1..d_model=32"]),
        (["attention.q_rank=100"], ["q_rank=100", "1..d_model=32"]),
        (["attention.kv_rnk=3"], ["attention.kv_rnk=3", "did you mean: attention.kv_rank"]),
        (["attention.window=0"], ["window=0"]),
        (["attention.scale=log"], ["attention.scale=log", "logn"]),
        (["attention=mlaa"], ["attention=mlaa", "did you mean: mla"]),
        (["attention.name=gqa"], ["attention=gqa", "mha, mla"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_wrong_settings(train: Posenc, place: Path, overrides: list[str], says: list[str]) -> None:
    for encoding in ("rope", "nope"):
        first = [] if overrides[0].startswith("attention=") else ["attention=mla"]
        refused = train(*first, f"encoding={encoding}", *overrides)
        assert refused.code == 2 and refused.out == "", refused
        for text in says:
            assert text in refused.err, refused.err
        assert "Traceback" not in refused.err and not list(place.iterdir())


def test_encodings_see_the_rotary_width() -> None:
    settings = {
        "attention": {"name": "mla", **RANKS, "rope_dim": None, "window": None, "scale": "none"},
        "encoding": {"name": "rope", "base": 1e4, "layout": "half", "fraction": 1.0, "drop_low": 0.0},
        "positions": CONTIGUOUS,
        "context_length": T,
        "plugins": [],
    }
    made = build_decoder(settings, SHAPE, VOCABULARY).encoding
    assert made.shape.head_dim == WIDTH // 2 and made.shape.d_model == SHAPE.d_model

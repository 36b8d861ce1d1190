"""Forward by FlexAttention: compiled for the CPU where that says something, else by the eager stand-in."""

from typing import Any

import pytest
import torch
import torch._dynamo
from doubles import LayerWindow, OneKeyHead, Widened
from flexing import (
    KEYS,
    LAYERS,
    NAMES,
    SERVED,
    SHAPE,
    by_blocks,
    by_flex,
    composed,
    eager,
    encoding,
    filled,
    given,
)
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.options import Offset, Randomized
from posenc.encodings.options import Window
from posenc.evaluation.extend._sinks import FirstAndNear
from posenc.model import flex


def test_which_encodings_are_served() -> None:
    q, k, v = given(64, 64)
    pos = torch.arange(64)
    with torch.no_grad():
        served = {name for name in NAMES if flex.serves(encoding(name), q, k, v, pos, 0)}
    assert served == set(SERVED)
    assert {"alibi", "t5", "kerple_log", "dynamic_bias", "rope", "rnope_swa", "sum"} <= served
    assert not served & {"fire", "shaw", "cope", "stick_breaking"}


def test_what_is_not_served() -> None:
    q, k, v = given(64, 64)
    pos = torch.arange(64)
    alibi = encoding("alibi")
    assert not flex.serves(alibi, q, k, v, pos, 0)  # gradients on a CPU
    with torch.no_grad():
        assert flex.serves(alibi, q, k, v, pos, 0)
        drawn = composed("alibi", Randomized(SHAPE, max=None, dense=False))
        assert flex.serves(drawn, q, k, v, pos, 0)
        masked = composed("alibi", Randomized(SHAPE, max=None, dense=False), Window(SHAPE, window=9))
        assert not flex.serves(masked, q, k, v, pos, 0)

        class Striped(Encoding):
            def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
                return (q_pos[:, None] - k_pos) % 2 == 0

        assert not flex.serves(Striped(SHAPE), q, k, v, pos, 0)  # a run for every second key


@pytest.mark.parametrize("queries", [KEYS, 40, 1])
@pytest.mark.parametrize("name", SERVED)
@torch.no_grad()
def test_every_served_encoding_gives_the_numbers_of_the_blocks(name: str, queries: int) -> None:
    e = encoding(name)
    pos, (q, k, v) = torch.arange(KEYS), given(queries, KEYS)
    assert flex.serves(e, q, k, v, pos, 0)
    for layer in range(LAYERS):
        want = by_blocks(e, q, k, v, pos, layer)
        assert (by_flex(e, q, k, v, pos, layer, eager) - want).abs().max() < 1e-5


@pytest.mark.parametrize("queries", [KEYS, 40])
@pytest.mark.parametrize(
    "option",
    [
        Window(SHAPE, window=1),
        Window(SHAPE, window=9),
        Window(SHAPE, window=200),
        FirstAndNear(SHAPE, first=4, near=150),
        Randomized(SHAPE, max=2000, dense=False),
        Offset(SHAPE, max=2000),
    ],
    ids=lambda option: option.name,
)
@torch.no_grad()
def test_windows_sinks_and_drawn_positions(option: Encoding, queries: int) -> None:
    e = composed("t5", option)
    pos, (q, k, v) = e.positions(KEYS, True, torch.Generator().manual_seed(2)), given(queries, KEYS)
    assert flex.serves(e, q, k, v, pos, 0)
    assert (by_flex(e, q, k, v, pos, 0, eager) - by_blocks(e, q, k, v, pos)).abs().max() < 1e-5


@pytest.mark.parametrize("cls", [LayerWindow, OneKeyHead, Widened])
@torch.no_grad()
def test_hooks_that_no_shipped_encoding_uses_so(cls: type[Encoding]) -> None:
    e = filled(cls(SHAPE))
    pos, (q, k, v) = torch.arange(KEYS), given(KEYS, KEYS)
    for layer in range(LAYERS):
        want = by_blocks(e, q, k, v, pos, layer)
        assert (by_flex(e, q, k, v, pos, layer, eager) - want).abs().max() < 1e-5


compiled = pytest.mark.filterwarnings("error:flex_attention called without torch.compile")


@compiled
@pytest.mark.slow
@torch.no_grad()
def test_compiled_biases() -> None:
    pos, (q, k, v) = torch.arange(KEYS), given(KEYS, KEYS)
    names = [name for name in SERVED if encoding(name).hooks == {"distance_bias"}]
    assert len(names) >= 6

    def check(name: str) -> None:
        e = encoding(name)
        assert flex.serves(e, q, k, v, pos, 0)
        assert (by_flex(e, q, k, v, pos) - by_blocks(e, q, k, v, pos)).abs().max() < 1e-5, name

    check(names[0])
    with torch._dynamo.config.patch(error_on_recompile=True):  # one kernel for all of them
        for name in names[1:]:
            check(name)


@compiled
@pytest.mark.slow
@torch.no_grad()
def test_compiled_in_bf16_with_sinks_and_fewer_queries_than_keys() -> None:
    e = composed("t5", FirstAndNear(SHAPE, first=4, near=150))
    pos = torch.arange(KEYS)
    exact = by_blocks(e, *given(140, KEYS), pos)
    with torch.autocast("cpu", torch.bfloat16):
        q, k, v = given(140, KEYS, torch.bfloat16)
        rounded = by_flex(e, q.float(), k, v, pos)  # a hook may hand float32 queries on
    assert rounded.dtype == torch.bfloat16
    # inputs have 8 bits: outputs of size 1 to 4 are off by up to 2^-7, the root mean square by less
    assert (rounded.float() - exact).abs().max() < 0.1
    assert (rounded.float() - exact).square().mean().sqrt() < 0.01


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [KEYS, 40])
@torch.no_grad()
def test_compiled_for_every_served_encoding(queries: int, dtype: torch.dtype) -> None:
    pos, (q, k, v) = torch.arange(KEYS), given(queries, KEYS, dtype)
    for name in SERVED:
        e = encoding(name)
        got, want = by_flex(e, q, k, v, pos), by_blocks(e, q, k, v, pos)
        off = (got.float() - want.float()).abs()
        # in bf16 the blocks round their scores, of up to 20, to 8 bits as well
        assert off.max() < (1e-5 if dtype == torch.float32 else 0.1), name
        assert off.square().mean().sqrt() < 0.01, name


@pytest.mark.parametrize("fault", [None, "raises", "wrong", "wrong gradient"])
def test_it_is_tried_before_it_is_trusted(
    fault: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a machine where it compiles, gives right numbers, or does not."""

    def stand_in(*given: Any) -> tuple[Tensor, Tensor | None]:
        if fault == "raises":
            raise RuntimeError("no C compiler found\nand more")
        out, lse = eager(*given)
        if fault == "wrong gradient":
            out = out.detach() + 0.5 * (out - out.detach())
        return (out * 1.1 if fault == "wrong" else out), lse

    monkeypatch.setattr(flex.importlib.util, "find_spec", lambda name: name)
    for name in ("_training", "_training_with_lse"):
        monkeypatch.setattr(flex, name, stand_in)
    flex.works.cache_clear()
    try:
        assert flex.works(torch.device("cpu")) == (fault is None)
    finally:
        flex.works.cache_clear()
    if fault == "raises":
        assert "no C compiler found" in caplog.text and "and more" not in caplog.text
    elif fault:
        assert "is off by" in caplog.text

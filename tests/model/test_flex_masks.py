"""Masks as runs of keys and as blocks."""

from typing import Any

import pytest
import torch
from doubles import LayerWindow
from flexing import KEYS, SHAPE, dense, encoding
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.options import Window
from posenc.evaluation.extend._sinks import FirstAndNear
from posenc.model import flex_masks


@pytest.mark.parametrize("queries", [KEYS, 130, 5])
@pytest.mark.parametrize(
    "e",
    [Encoding(SHAPE), Window(SHAPE, window=40), FirstAndNear(SHAPE, first=3, near=30), LayerWindow(SHAPE)],
)
def test_masks(e: Encoding, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_masks, "MOST_CELLS", 7 * KEYS)  # several blocks of queries
    pos = torch.arange(KEYS)
    own = pos[KEYS - queries :, None]
    want = (pos <= own) & (e.visible(pos[KEYS - queries :], pos, 0) | (pos == own))
    mask = flex_masks.mask_of(e, pos, 0, queries)
    assert mask is not None
    assert torch.equal(mask.allowed(0, queries, KEYS), want)
    assert mask.reach == int((own - pos)[want].max())
    assert mask.causal == ("visible" not in e.hooks)
    from torch.nn.attention.flex_attention import create_block_mask

    theirs = create_block_mask(
        lambda b, h, i, j: want[i, j], None, None, queries, KEYS, device="cpu", BLOCK_SIZE=flex_masks.BLOCK
    )
    for one in ("kv", "full_kv", "q", "full_q"):
        got, expected = (
            dense(getattr(blocks, f"{one}_num_blocks"), getattr(blocks, f"{one}_indices"))
            for blocks in (mask.blocks, theirs)
        )
        assert torch.equal(got, expected), one


def test_masks_are_kept_by_all_that_they_depend_on() -> None:
    pos = torch.arange(40)
    e, other = LayerWindow(SHAPE), Window(SHAPE, window=4)

    def of(one: Encoding, layer: int = 0, queries: int = 40, keys: int = 40) -> Any:
        return flex_masks.mask_of(one, torch.arange(keys), layer, queries)

    assert of(e) is of(e) is flex_masks.mask_of(e, pos, 0, 40)
    different = [of(e), of(e, layer=1), of(e, queries=9), of(e, keys=41, queries=41), of(other)]
    assert len({id(one) for one in different}) == len(different)
    same = Window(SHAPE, window=4)
    assert of(same, layer=0) is of(same, layer=1)  # one mask for equal layers
    assert of(Encoding(SHAPE)) is of(encoding("alibi"))  # and for all encodings without one


def test_no_tensor_of_a_mask_is_square(monkeypatch: pytest.MonkeyPatch) -> None:
    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else (out,):
                self.numel = max(self.numel, tensor.numel() if isinstance(tensor, Tensor) else 0)
            return out

    keys, most = 4096, 1 << 18
    monkeypatch.setattr(flex_masks, "MOST_CELLS", most)
    with Largest() as largest:
        flex_masks.mask_of(FirstAndNear(SHAPE, first=4, near=1000), torch.arange(keys), 0, keys)
    assert most <= largest.numel <= 2 * most < keys * keys


def test_masks_kept_are_few() -> None:
    e = Window(SHAPE, window=4)
    for keys in range(1, flex_masks.KEPT + 10):
        flex_masks.mask_of(e, torch.arange(keys), 0, keys)
    assert len(flex_masks._visible[e]) == flex_masks.KEPT
    before = len(flex_masks._visible)
    del e
    assert len(flex_masks._visible) == before - 1

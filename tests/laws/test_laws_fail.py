"""Each part of a law can fail, and says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from subjects import of_class
from torch import Tensor

from posenc.cli.check import SHORT
from posenc.core.errors import UserError
from posenc.encodings.base import Encoding, Shape
from posenc.laws import LAWS, Verdict, judge
from posenc.laws.precision import far_positions
from posenc.laws.subject import FAR
from posenc.model import kernels


def test_an_exception_is_a_failure_that_says_where() -> None:
    class Raising(Encoding):
        learned = "0"

        def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
            raise KeyError("no [red]such thing\nand more")

    subject = of_class(Raising)
    verdict = judge("causal", subject)
    assert verdict.status == "fail" and verdict.reason.startswith("KeyError:")
    assert "no [red]such thing" in verdict.reason and "test_laws_fail.py:" in verdict.reason
    with pytest.raises(KeyError):
        judge("causal", subject, debug=True)


def test_a_nan_is_no_agreement() -> None:
    class NotANumber(Encoding):
        def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
            return x * float("nan")

    failing = {law for law in LAWS if judge(law, of_class(NotANumber)).status == "fail"}
    assert failing >= {
        "causal",
        "prefix",
        "order",
        "positions",
        "finite",
        "float32",
        "bf16",
        "gradient",
        "trace",
    }
    assert failing >= {"load", "tail", "blocks", "options"}


class Plain(Encoding):
    learned = "0"


class Wide(Plain):
    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x.double()


class Halves(Plain):
    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        return torch.arange(n) / 2


class Backwards(Plain):
    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        return torch.arange(n).flip(0)


class Everchanging(Plain):
    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        return torch.randperm(2 * n)[:n].sort().values


class Level(Plain):
    penalty = True

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return torch.zeros(self.shape.n_heads, len(r))


class OnlyInFloat32(Plain):
    """Its gradient in bf16 is nan."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gain = torch.nn.Parameter(torch.empty(1))

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * (1 + self.gain * (1 if q.dtype == torch.float32 else float("inf") * 0))


class Fading(Plain):
    """In bf16 a little worse with every token."""

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s if q.dtype == torch.float32 else s * (1 + q_pos[:, None] * 1.5e-4)


class Unnamed(Plain):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        if shape.position_limit is not None:
            raise UserError("encoding", "unnamed", "no")


class Deaf(Plain):
    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x * 0 if layer == 0 else x


class SingleQueries(Plain):
    """Forgets that a block may be one query."""

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * 2 if len(q_pos) == 1 else s


class Unmasked(Plain):
    """Knows one mask only."""

    instead = 0.0

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        causal = torch.ones_like(allowed).tril(s.shape[-1] - s.shape[-2])
        p = super().weights(s, allowed, layer)
        return p if torch.equal(allowed, causal) else torch.softmax(s, dim=-1) + self.instead


class NotWithMasks(Unmasked):
    instead = float("nan")


class NotLoaded(Plain):
    """Draws what it never trains from the time of its making."""

    made = 0

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        NotLoaded.made += 1
        self.drawn = torch.randn(shape.d_model, generator=torch.Generator().manual_seed(self.made))

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x + self.drawn.to(x)


FAILS: list[tuple[type[Encoding], str, str]] = [
    (Plain, "positions", "no change of positions changes logits"),
    (type("Unstable", (Plain,), {"prefix_stable": False}), "prefix", "declares that a longer text"),
    (Wide, "finite", "same dtype"),
    (Halves, "positions", "positions are torch.float32"),
    (Backwards, "positions", "do not increase"),
    (Everchanging, "positions", "more than their generator"),
    (Level, "penalty", "the same at every distance"),
    (OnlyInFloat32, "gradient", "in bf16"),
    (Fading, "bf16", "times as far off at longer windows"),
    (Unnamed, "options", "randomized is refused without being named"),
    (Deaf, "causal", "change nothing"),
    (SingleQueries, "blocks", "queries one by one"),
    (Unmasked, "options", "with window: the future changes"),
    (NotWithMasks, "options", "with window: not finite"),
    (NotLoaded, "load", "before and after loading"),
    (NotLoaded, "trace", "of a fresh model"),
]


@pytest.mark.parametrize(("cls", "law", "says"), FAILS, ids=[f"{c.__name__}-{law}" for c, law, _ in FAILS])
def test_each_part_of_a_law_can_fail(cls: type[Encoding], law: str, says: str) -> None:
    verdict = judge(law, of_class(cls))
    assert verdict.status == "fail" and says in verdict.reason, verdict


@pytest.mark.parametrize("kernel", ["_causal", "_masked"])
def test_the_fused_kernels_are_compared(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, kernel, lambda q, k, v, *others: v)
    verdict = judge("blocks", of_class(Plain))
    assert verdict.status == "fail" and "the fused kernel" in verdict.reason


def test_far_positions_may_be_refused_and_near_ones_not() -> None:
    class Ending(Encoding):
        relative = True

        def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
            if int(pos[-1]) >= self.end:
                raise ValueError("that far it does not go")
            return x

        end = 16 * SHORT * 2

    assert judge("float32", of_class(Ending)) == Verdict(
        "n/a", "", "refuses far positions: that far it does not go"
    )
    assert judge("finite", of_class(Ending)).status == "pass"
    assert "that far" in judge("shift", of_class(Ending)).reason

    class Spanning(Encoding):
        """What matters to it is how far apart the first and the last position are."""

        def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
            if int(pos[-1] - pos[0]) > 1000:
                raise ValueError("too far apart")
            return x

    assert far_positions(of_class(Spanning).fresh(), 4).tolist() == list(range(FAR - 8, FAR))
    assert judge("float32", of_class(Spanning)).status == "pass"

    class Short(Ending):
        end = SHORT

    assert judge("finite", of_class(Short)).status == "fail"

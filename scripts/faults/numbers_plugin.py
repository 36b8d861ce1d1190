"""An encoding that fails as its YAML says: `what` goes wrong at training step `at`, or beyond `at` tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape


class Faulty(Encoding):
    name, paper, formula, acts_on, past_training = "faulty", "none", "none", "nothing", "none"

    def __init__(self, shape: Shape, *, what: str, at: int) -> None:
        super().__init__(shape)
        self.what, self.at, self.seen = what, at, 0
        if what == "weights":
            self.unused = torch.nn.Parameter(torch.zeros(1))

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        parameter.zero_()

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        if layer:
            return x
        if self.training:
            self.seen += 1
            if self.seen == self.at:
                return self.broken(x)
        elif self.what.startswith("long-") and len(pos) > self.at:
            return self.refused(x)
        return x

    def broken(self, x: Tensor) -> Tensor:
        if self.what == "loss-undefined":
            return x * float("nan")
        if self.what == "loss-endless":
            return x * float("inf")
        if self.what == "gradient-endless":
            x.register_hook(lambda gradient: gradient * float("inf"))
        if self.what == "gradient-undefined":
            x.register_hook(lambda gradient: gradient * float("nan"))
        if self.what == "weights":
            self.unused.data.fill_(float("inf"))
        return x

    def refused(self, x: Tensor) -> Tensor:
        if self.what == "long-undefined":
            return x * float("nan")
        if self.what == "long-endless":
            return x * torch.tensor([float("inf")] + [1.0] * (x.shape[-1] - 1))
        if self.what == "long-huge":
            torch.empty(1 << 50)
        if self.what == "long-torch" or (self.what == "long-batch" and len(x) > 1):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        if self.what == "long-text":
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.")
        if self.what == "long-python":
            raise MemoryError
        return x

from collections.abc import Callable, Iterator

import pytest
import torch

from posenc.model import kernels


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def hold_at_most(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Limits the scores of a block, on every device; the list it returns gets each block's first query."""

    def limit(most: int) -> list[int]:
        for name in dir(kernels):
            if name.startswith("MAX_SCORES"):
                monkeypatch.setattr(kernels, name, most)
        starts: list[int] = []
        bias = kernels.Masked.bias

        def recording(self: kernels.Masked, start: int, stop: int, seen: int) -> torch.Tensor:
            starts.append(start)
            return bias(self, start, stop, seen)

        monkeypatch.setattr(kernels.Masked, "bias", recording)
        return starts

    return limit

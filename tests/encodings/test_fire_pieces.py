"""FIRE's network by pieces is the network, and so are its gradients."""

import pytest
import torch
from formulas_bias import largest, network
from torch import Tensor

from posenc.encodings.families.bias import relu_network


class Case:
    """A network 1-K-H in float64 and inputs, among them every border of its pieces."""

    def __init__(self, hidden: int = 32, heads: int = 3, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*sizes: int) -> Tensor:
            return torch.randn(*sizes, generator=generator, dtype=torch.float64)

        self.w1, self.b1 = normal(hidden), normal(hidden)
        self.w2, self.b2 = normal(heads, hidden), normal(heads)
        if hidden > 7:
            self.w1[2:6] = 0  # without slope: two on, one off, one exactly at 0
            self.b1[2:6] = torch.tensor([0.7, 1.3, -0.4, 0.0])
            self.w1[6], self.b1[6] = 0.5, -0.25  # two units with a border at 0.5, exactly
            self.w1[7], self.b1[7] = -2.0, 1.0
        self.u = torch.cat((torch.rand(50, generator=generator, dtype=torch.float64), normal(50) * 5))

    def borders(self) -> Tensor:
        turning = self.w1 != 0
        return -self.b1[turning] / self.w1[turning]

    def weights(self) -> list[Tensor]:
        return [self.w1, self.b1, self.w2, self.b2]

    def rows(self, u: Tensor) -> Tensor:
        """(H, n) by loops."""
        one = network(*self.weights())
        return torch.tensor([one(value) for value in u.tolist()], dtype=torch.float64).T


@pytest.mark.parametrize("hidden, heads, seed", [(32, 3, 0), (32, 1, 1), (1, 2, 2), (8, 4, 3), (2, 1, 4)])
def test_pieces_are_the_network(hidden: int, heads: int, seed: int) -> None:
    case = Case(hidden, heads, seed)
    u = torch.cat((case.u, case.borders(), torch.tensor([0.0, 0.5, 1.0, -1e6, 1e6], dtype=torch.float64)))
    want = case.rows(u)
    assert ((relu_network(u, *case.weights()) - want).abs() <= 1e-10 * (1 + u.abs())).all()
    assert torch.equal(relu_network(u.view(1, -1), *case.weights())[:, 0], relu_network(u, *case.weights()))


def test_units_without_slope_alone() -> None:
    zero, offsets = torch.zeros(3), torch.tensor([1.0, -1.0, 0.0])
    got = relu_network(
        torch.tensor([-2.0, 0.0, 2.0]), zero, offsets, torch.tensor([[3.0, 5.0, 7.0]]), torch.ones(1)
    )
    assert got.tolist() == [[4.0, 4.0, 4.0]]


@pytest.mark.parametrize("hidden, heads, seed", [(32, 3, 0), (1, 2, 2), (8, 4, 3)])
def test_gradients_of_the_pieces_are_the_networks(hidden: int, heads: int, seed: int) -> None:
    """For the weights and the input, away from the borders; against sums over the units that are on."""
    case = Case(hidden, heads, seed)
    loss = torch.randn(heads, len(case.u), generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    leaves = [one.clone().requires_grad_() for one in (case.u, *case.weights())]
    (relu_network(*leaves) * loss).sum().backward()

    u, w1, b1, w2 = (one.tolist() for one in (case.u, case.w1, case.b1, case.w2))
    by_w1, by_b1 = [0.0] * hidden, [0.0] * hidden
    by_w2 = [[0.0] * hidden for _ in range(heads)]
    by_u = [0.0] * len(u)
    for n, value in enumerate(u):
        for k in range(hidden):
            inside = w1[k] * value + b1[k]
            if inside <= 0:
                continue
            for h in range(heads):
                g = loss[h, n].item()
                by_w2[h][k] += g * inside
                by_w1[k] += g * w2[h][k] * value
                by_b1[k] += g * w2[h][k]
                by_u[n] += g * w2[h][k] * w1[k]
    for leaf, want in zip(leaves, (by_u, by_w1, by_b1, by_w2, loss.sum(-1).tolist()), strict=True):
        assert leaf.grad is not None
        assert largest(leaf.grad, torch.tensor(want, dtype=torch.float64)) < 1e-10


def test_on_a_border_the_gradient_is_that_of_one_side() -> None:
    case = Case()
    got = []
    for shift in (0.0, -1e-9, 1e-9):
        u = torch.tensor([0.5 + shift], dtype=torch.float64, requires_grad=True)
        relu_network(u, *case.weights()).sum().backward()
        assert u.grad is not None
        got.append(u.grad.item())
    assert got[0] == pytest.approx(got[1], rel=1e-12) and got[1] != pytest.approx(got[2], rel=1e-3)

"""A small decoder, and encodings in no catalogue."""

import torch
from torch import nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.model.decoder import Decoder, ModelShape, initialize

SHAPE = ModelShape("small", d_model=16, n_layers=2, n_heads=2, mlp_ratio=2)
T = 8
VOCABULARY = 13


def model_of(encoding, *options):
    """Build a decoder with its initial values.

    Parameters of the encoding and its options that start at zero are drawn: zero would hide what they do.
    """
    model = Decoder(SHAPE, VOCABULARY, encoding, options)
    initialize(model, 3)
    parameters = [*model.encoding.parameters(), *model.options.parameters()]
    for number, parameter in enumerate(parameters):
        if not parameter.detach().any():
            nn.init.normal_(parameter, generator=generator_for(number, "test"))
    return model.eval()


def norm(x, weight=1.0):
    """Return the RMSNorm of a vector, written out."""
    return x / (x.square().mean() + torch.finfo(torch.float32).eps).sqrt() * weight


class Double(Encoding):
    """An encoding whose parameters have a standard deviation of 1, so that what they do is seen."""

    name = paper = formula = acts_on = past_training = "double"

    def initialize(self, name, parameter, generator):
        nn.init.normal_(parameter, generator=generator)


class LayerWindow(Double):
    """A window of 3 keys in layer 0, everything above; forgets that a token sees itself."""

    def visible(self, q_pos, k_pos, layer):
        r = q_pos[:, None] - k_pos[None, :]
        return ((r < 3) & (r > 0)) | torch.tensor(layer > 0)


class BothPositions(Double):
    """A learned bias that needs both positions, and vectors before every block."""

    def __init__(self, shape):
        super().__init__(shape)
        self.weight = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads))
        self.direction = nn.Parameter(torch.empty(shape.n_layers, shape.d_model))

    def bias(self, q_pos, k_pos, layer):
        r = q_pos[:, None] - k_pos[None, :]
        psi = (1 + r.clamp_min(0).float()).log() / (2 + q_pos.float()).log()[:, None]
        psi = torch.where(r < 0, 1e4, psi)  # the future may hold anything finite
        return self.weight[layer][:, None, None] * psi

    def embed(self, x, pos, layer):
        return x + (pos.float()[:, None] / 8 * self.direction[layer]).to(x.dtype)


class Widened(Double):
    """Each number becomes a vector on a circle, so D doubles; the scale stays that of D."""

    def __init__(self, shape):
        super().__init__(shape)
        self.frequency = nn.Parameter(torch.empty(shape.head_dim))

    def _turn(self, x, pos):
        angle = pos.float()[:, None] / 8 * self.frequency
        return torch.cat((x * angle.cos(), x * angle.sin()), dim=-1).to(x.dtype)

    def rotate(self, q, k, q_pos, k_pos, layer):
        return self._turn(q, q_pos), self._turn(k, k_pos)


class OneKeyHead(Double):
    """All query heads look at the mean key, scaled by the position."""

    def __init__(self, shape):
        super().__init__(shape)
        self.gain = nn.Parameter(torch.empty(1))

    def rotate(self, q, k, q_pos, k_pos, layer):
        return q, k.mean(1, keepdim=True) * (1 + self.gain * k_pos.float()[:, None] / 8).to(k.dtype)

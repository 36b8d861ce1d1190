"""The interface between an encoding and the model: one class whose hooks do nothing unless overridden.

Shapes, here and in every encoding: B batch, T queries, S keys, R distances, H heads, D head width.

A formula says what a score, or a vector, becomes. Its symbols:
  i, j      positions of a query and of a key, j <= i
  score_ij  q_i . k_j / sqrt(D), the scaled score before the softmax
  x_t       the vector of token t in the residual stream; where the formula says so, the layer's normed input
  h         a head, 1..H
  d, L      d_model, and the number of layers
  T         the training length (in shapes: the number of queries)

Positions are explicit int64 arguments. Distances, slopes, biases and cumulative sums are computed in float32
or better and cast once, at the end: in bf16 the positions 256 and 257 are equal, which looks exactly like
failed extrapolation. Angles are computed in float64, and their cos and sin are cast: at position 65 535 a
float32 product is off by up to 0.004 radians.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

HOOKS = (
    "positions",
    "embed",
    "shift",
    "adjust",
    "rotate",
    "distance_bias",
    "bias",
    "visible",
    "prepare",
    "scores",
    "weights",
    "sink",
    "values",
    "output",
)
# The longest window of the laws, as a multiple of T. A setting that acts only beyond it changes nothing that
# the laws see, so an encoding has to say so (see `inert`).
LONGEST_OF_LAWS = 8


# Not `.to(torch.float64)`, which raises an error on MPS.
def float64(x: Tensor) -> Tensor:
    """Cast x to float64, on the CPU where its device has none (Apple's MPS)."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def check_at_least(minimum: float, **parameters: float) -> None:
    """Raise ValueError for parameters that are below `minimum` or not finite."""
    for name, value in parameters.items():
        if not minimum <= value < math.inf:
            raise ValueError(f"{name}={value}: must be a finite number of at least {minimum:g}")


# Frozen, since encodings keep it and derive sizes from it when they are built.
@dataclass(frozen=True)
class Shape:
    """The sizes that an encoding knows of its model."""

    d_model: int
    n_heads: int
    head_dim: int
    n_layers: int
    train_length: int  # the context length T that the model is trained at
    # Positions and distances in training are below T, or below these limits if `positions=` draws them.
    position_limit: int | None = None
    distance_limit: int | None = None  # given if positions are drawn with gaps

    @property
    def positions(self) -> int:
        """Return the number of positions in training: T, or the limit that they are drawn below."""
        return self.train_length if self.position_limit is None else self.position_limit

    @property
    def distances(self) -> int:
        """Return the number of distances in training, including 0."""
        return self.train_length if self.distance_limit is None else self.distance_limit


class StepCost(NamedTuple):
    """The time of a training step as a multiple of that with `nope`, at context lengths of 64 and 512 tokens.

    That of an attention option is the time with it, as a multiple of that without it, both with `rope`
    (docs/performance.md). Measured on a CPU: the model `nano`, bf16, 2048 tokens, one thread. The two are
    timed in turns, 6 to 15 times, and the median ratio counts.
    """

    at_64: float = 1.0
    at_512: float = 1.0


@dataclass(frozen=True)
class Construction:
    """The arguments that an encoding was constructed with, so that it can be constructed again."""

    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


class Encoding(nn.Module):
    """One positional encoding. Override the hooks it needs; a hook left alone costs nothing.

    A forward pass calls `positions` once, and then in each layer the other hooks in this order: `embed`,
    `shift`, `adjust`, `prepare`, `rotate`, `bias` (or `distance_bias`), `scores`, `visible`, `weights` (or
    `sink`), `values`, `output`. The attention picks its kernel by `hooks`, never by a name.

    Parameters are keyword-only arguments of `__init__` with types; their defaults are in
    `conf/encoding/<name>.yaml`. `__init__` raises ValueError for a parameter out of range.

    A trained parameter begins with what `__init__` gives it:
      a constant                      stays
      `nn.Linear`, `torch.randn`, ... are drawn again in the same way, by the run's seed and the parameter's
                                      name (`initial_values.py`)
      `torch.empty`                   is filled by `initialize`
    """

    name: ClassVar[str]
    paper: ClassVar[str] = "not given"
    formula: ClassVar[str] = "not given"
    acts_on: ClassVar[str] = "not given"  # one word; `catalogue.ACTS_ON` lists those of encodings
    past_training: ClassVar[str] = "not given"  # what the encoding does beyond T, in one line
    learned: ClassVar[str | None] = None  # the formula of `learned_parameters`, as text for the catalogue
    revision: ClassVar[int] = 1  # raised when its numbers change; part of a run's hash
    decayed: ClassVar[bool] = False  # whether weight decay applies to its parameters
    zero_init: ClassVar[tuple[str, ...]] = ()  # parameters that start at zero if `__init__` leaves them empty
    refuses: Mapping[str, str] = {}  # options that make no sense here, with the reason
    # Settings and parameters that may be without effect, with the reason. A law asks that every other one
    # changes some number.
    inert: Mapping[str, str] = {}

    # Declarations that the laws (`posenc check`) verify. The encoding `sum` sets them from its parts.
    prefix_stable: bool = True  # False: a longer text changes the scores inside its prefix
    relative: bool = False  # scores do not change when all positions shift alike
    penalty: bool = False  # its bias never rises with the distance
    uses_positions: bool = True  # False: order comes from the content or the mask, never from `pos`
    cumulates_gates: bool = False  # `scores` adds what `gates_of` says, and nothing else
    # Declared if it is above 1.1. A dry run multiplies the time of `nope` by it.
    cost: StepCost = StepCost()
    # It replaces the product q . k by one of its own, so that no other encoding may rotate them as well.
    replaces_product: bool = False
    scales_with_q: bool = True  # False: its scores do not grow by the factor that q is multiplied by
    decouples: bool = False  # it can be used with `attention=mla`, on the rotary part of each head alone

    construction: Construction

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Note the arguments: `initial_values.py` finds what is drawn by constructing the class again."""
        # In `__new__`, so that a class that overrides `__init__` need not remember to do it.
        encoding = super().__new__(cls)
        # nn.Module's __setattr__ allows nothing before its own __init__.
        encoding.__dict__["construction"] = Construction(arguments, keywords)
        return encoding

    def __init__(self, shape: Shape) -> None:
        """Keep the shape. Raises ValueError for a class with the hook `sink` and without `weights`."""
        super().__init__()
        # Some kernels read `sink`, and the others call `weights`, which by default leaves the sink out.
        if type(self).sink is not Encoding.sink and type(self).weights is Encoding.weights:
            raise ValueError("it overrides `sink` without `weights`; kernels call either: write both")
        self.shape = shape
        self.beyond: str | None = None  # policy past T, one of those in learned.py; None: it has none
        self.ends_at: int | None = None  # first position that cannot be encoded at all
        # The values that replace null in the YAML, computed from the shape. A run records them.
        self.derived: dict[str, Any] = {}
        # Seeds values that are drawn but never trained. `initialize_encoding` sets it to the seed of the run.
        self.seed = 0

    @cached_property
    def hooks(self) -> frozenset[str]:
        """Return the names of the hooks that this encoding overrides; of a sum, those of its parts."""
        return frozenset(hook for hook in HOOKS if getattr(type(self), hook) is not getattr(Encoding, hook))

    def warnings(self) -> list[str]:
        """Return facts about this encoding at this shape that a reader of its numbers must know."""
        return []

    def learned_parameters(self) -> int | None:
        """Return how many trained parameters there should be. None declares nothing.

        Compute it from the shape and the settings, not from the tensors: a law compares the two.
        """
        return None

    def weights_in_products(self) -> int:
        """Return how many weights its linear maps of the tokens have, to count FLOPs."""
        return 0

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        """Fill what `__init__` left empty of the parameter `name`, in place.

        `parameter` holds what `__init__` gave it; the caller has put nan where that was `torch.empty`. The
        generator depends on the seed and the name alone. By default an empty parameter gets normal values of
        deviation d_model^-1/2, or zeros if it is in `zero_init`. A parameter of an encoding inside this one
        is filled by that encoding.
        """
        is_empty = parameter.isnan()
        # A constant that `__init__` gives stays, and takes no draw.
        if not is_empty.any():
            return
        filling = torch.zeros_like(parameter)
        if name not in self.zero_init:
            nn.init.normal_(filling, std=self.shape.d_model**-0.5, generator=generator)
        parameter.copy_(torch.where(is_empty, filling, parameter))

    def for_one_pass(self) -> "Encoding":
        """Return the encoding whose hooks are called in one forward pass: by default this one.

        An encoding that carries numbers from layer to layer returns a copy of itself without any, so that no
        pass can see those of another one.
        """
        return self

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        """Return positions of a window of n tokens: (n,) int64, increasing, shared by the batch."""
        return torch.arange(n)  # (n,)

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        """Return the residual stream (B, T, d_model) entering block `layer`; 0 is the input embedding."""
        return x

    def shift(self, k: Tensor, v: Tensor, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Change keys and values, (B, H, S, D) both, before `attention.qk_norm` and any other hook.

        x (B, S, d_model) is the layer's normed input. Latent attention does not call it.
        """
        return k, v

    def adjust(
        self, q: Tensor, k: Tensor, x: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Change q (B, H, T, D) and k (B, H or 1, S, D) before any other hook reads them.

        x (B, S, d_model) is the layer's normed input. q and k are not rotated yet, but for the rotary part of
        each head in latent attention.
        """
        return q, k

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> Any:
        """Return what `scores` needs to know of a whole window, computed once in each layer.

        x (B, S, d_model) is the layer's normed input; q and k are not rotated yet.
        """
        return None

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Make q (B, H, T, D) and k (B, H or 1, S, D) depend on their positions. The result may be wider."""
        return q, k

    def unrotated_numbers(self, layer: int) -> list[int]:
        """Return the indices of a head's numbers that `rotate` leaves as they are in this layer."""
        return [] if "rotate" in self.hooks else list(range(self.shape.head_dim))

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        """Return the bias of distances r >= 0, (R,) int64 -> (H, R) float32."""
        raise TypeError(f"{type(self).__name__} has no bias by distance")

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """Return the bias on the scaled scores: positions (T,) and (S,) int64 -> (H, T, S) float32.

        By default it is `distance_bias`. Entries of the future (k_pos > q_pos) must be finite: the causal
        mask comes after, and its zero gradient times nan or inf would be nan.
        """
        # Future keys get the bias of distance 0, which is finite. The causal mask hides them afterwards.
        r = (q_pos[:, None] - k_pos[None, :]).clamp_min(0)  # (T, S)
        # For each distance, not each pair: a network would need (T, S, hidden) numbers for pairs.
        table = self.distance_bias(torch.arange(int(r.max()) + 1, device=r.device), layer)  # (H, R)
        return table[:, r]  # (H, T, S)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        """Change the scores of a block of queries: s (B, H, T, S) float32, scaled and biased already.

        q and k are rotated already, and s is their product. `state` is what `prepare` returned. The S keys
        are the window's first tokens, and the T queries are the last T of these: the last query and the last
        key are the same token.
        """
        return s

    def gates_of(self, state: Any) -> tuple[Tensor, Tensor | None]:
        """Return C (B, H, S) float64 and g (B, H, S) of the bias -g_i (C_i - C_j) that `scores` adds.

        C is the cumulated sum of the gates. g may be None, which stands for 1. `state` is what `prepare`
        returned.
        """
        raise TypeError(f"{type(self).__name__} does not cumulate gates")

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """Return the keys a query sees, on top of the causal mask: ([H,] T, S) bool.

        A query always sees its own key. Without the first dimension all heads see the same keys.
        """
        return torch.ones(len(q_pos), len(k_pos), dtype=torch.bool, device=q_pos.device)  # (T, S)

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        """Return the attention weights of scores s (B, H, T, S) float32.

        `allowed` ([H,] T, S) is True where a query may see a key.
        """
        # No row is all -inf, since every query sees its own key, so the softmax never gives nan.
        return torch.softmax(s.masked_fill(~allowed, float("-inf")), dim=-1)  # (B, H, T, S)

    def sink(self, layer: int) -> Tensor:
        """Return the score of one more key, which has no value: (H,) float32.

        A fused kernel adds it to the softmax, instead of calling this encoding's `weights`.
        """
        raise TypeError(f"{type(self).__name__} has no sink")

    def values(self, p: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """Return the output of a block of queries: p (B, H, T, S), v (B, H, S, D) -> (B, H, T, D)."""
        return p @ v

    def output(self, y: Tensor, x: Tensor, layer: int) -> Tensor:
        """Change the output of all heads, y (B, H, T, D), before the output map reads it.

        x (B, T, d_model) is the layer's normed input at the queries.
        """
        return y


def hooks_on_scores(encoding: Encoding) -> frozenset[str]:
    """Return the hooks that read or change scores and weights. Fused kernels do not call them.

    `weights` is not among them if the encoding has a `sink`: then a fused kernel adds the sink instead.
    """
    on_scores = {"scores", "weights", "values"}
    if "sink" in encoding.hooks:
        on_scores.remove("weights")
    return encoding.hooks & on_scores


def owner_of(model: nn.Module, parameter: str) -> tuple[Encoding, str]:
    """Return the innermost encoding of a model that has the parameter, and the parameter's name in it.

    `parameter` must be a parameter of an encoding.
    """
    path, _, name = parameter.rpartition(".")
    module = model.get_submodule(path)
    # An nn.Linear or a ParameterDict has the parameter, but only an encoding has `initialize`.
    while not isinstance(module, Encoding):
        path, _, outer = path.rpartition(".")
        name = f"{outer}.{name}"
        module = model.get_submodule(path)
    return module, name

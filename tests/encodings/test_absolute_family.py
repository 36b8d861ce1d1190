"""What all absolute encodings share: per_layer, combine, drawn positions, the declared parameter count."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import formulas
import formulas_absolute
import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "model"))
import naive

from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding, encoding_class
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.families.absolute import Absolute
from posenc.encodings.options import Offset, Randomized
from posenc.encodings.registry import default_parameters
from posenc.model.decoder import Decoder, ModelShape, count_parameters, initialize

T, LIMIT, VOCABULARY = 8, 128, 11
TOLERANCE = 2e-5  # of logits around 1: the scores of attention are float32
SHAPE = ModelShape("family", d_model=16, n_layers=3, n_heads=2, mlp_ratio=2)

# Row of position t in a place, as plain numbers; `e` gives the parameters, `last` the window's last position.
ROWS: dict[str, Callable[[Any, int, int, int], list[float]]] = {
    "integer": lambda e, t, place, last: formulas_absolute.counted(t, e.step[place].tolist()),
    "normalized": lambda e, t, place, last: formulas_absolute.share_of_window(
        t, last, e.direction[place].tolist()
    ),
    "binary": lambda e, t, place, last: formulas_absolute.binary_digits(t, e.table[place].tolist()),
    "learned": lambda e, t, place, last: e.table[place, t].tolist(),
    "sinusoidal": lambda e, t, place, last: formulas.sinusoid(t, SHAPE.d_model, 10000.0),
    "sinusoidal_trainable": lambda e, t, place, last: formulas_absolute.turning(
        t, e.frequency[place].tolist(), e.phase[place].tolist()
    ),
    "hybrid": lambda e, t, place, last: formulas_absolute.hybrid(
        t, e.table[place, t].tolist(), SHAPE.d_model, 10000.0
    ),
}
SCALED = {"sinusoidal", "sinusoidal_trainable", "hybrid"}  # sqrt(d) on the token embeddings

NAMES = sorted(ROWS)
OPTIONS = [
    {"per_layer": per_layer, "combine": combine}
    for per_layer, combine in itertools.product((False, True), ("add", "concat"))
]
every_name = pytest.mark.parametrize("name", NAMES)
every_option = pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"{o['per_layer']}-{o['combine']}")


def encoding(name: str, limit: int | None = LIMIT, **params: object) -> Absolute:
    made = build_encoding(
        name,
        d_model=SHAPE.d_model,
        n_heads=SHAPE.n_heads,
        head_dim=SHAPE.head_dim,
        n_layers=SHAPE.n_layers,
        train_length=T,
        position_limit=limit,
        **params,
    )
    assert isinstance(made, Absolute)
    return made


def model_of(own: Encoding, *acting: Encoding) -> Decoder:
    """Initialised, then every parameter of the encoding moved away from its start."""
    model = Decoder(SHAPE, VOCABULARY, own, options=list(acting))
    initialize(model, 0)
    with torch.no_grad():
        for number, parameter in enumerate(own.parameters()):
            noise = torch.randn(parameter.shape, generator=generator_for(number, "family"))
            parameter += 0.1 * noise
    return model


def tokens(n: int, batch: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(n))


class TokenByToken(naive.Naive):
    """The family's law for one token's vector, in float64."""

    def __init__(self, e: Any, last: int) -> None:
        super().__init__(e)
        self.last = last

    def embed(self, x: Tensor, t: int, layer: int) -> Tensor:
        if self.e.name in SCALED and layer == 0:
            x = x * SHAPE.d_model**0.5
        if layer > 0 and not self.e.per_layer:
            return x
        row = ROWS[self.e.name](self.e, t, layer, self.last)
        if self.e.combine == "add":
            return x + torch.tensor(row, dtype=torch.float64)
        map_ = self.e.joined[layer].tolist()
        return torch.tensor(formulas_absolute.joined(map_, x.tolist(), row), dtype=torch.float64)


def test_every_absolute_encoding_is_here() -> None:
    paths = sorted((Path(__file__).parents[2] / "conf" / "encoding").glob("*.yaml"))
    assert {path.stem for path in paths if issubclass(encoding_class(path.stem), Absolute)} == set(NAMES)


@every_name
@every_option
@pytest.mark.parametrize(
    "pos", [list(range(T)), [0, 3, 4, 9, 40, 64, 127], [5]], ids=["dense", "drawn", "one"]
)
def test_decoder_equals_the_formula_token_by_token(
    name: str, options: dict[str, Any], pos: list[int]
) -> None:
    model, ids = model_of(encoding(name, **options)).double(), tokens(len(pos))
    with torch.no_grad():
        got = model(ids, torch.tensor(pos))[0]
        want = naive.decode(model, ids[0].tolist(), pos, TokenByToken(model.encoding, pos[-1]))
    assert (got - want).abs().max() < TOLERANCE


@every_name
@every_option
@pytest.mark.parametrize("limit", [None, LIMIT])
def test_declared_number_of_parameters(name: str, options: dict[str, Any], limit: int | None) -> None:
    made = encoding(name, limit, **options)
    given = {**default_parameters(name), **options}
    sizes = {"T": made.shape.positions, "d": SHAPE.d_model, "D": SHAPE.head_dim}
    sizes |= {"H": SHAPE.n_heads, "L": SHAPE.n_layers}
    assert made.learned is not None
    declared = eval(made.learned, {"__builtins__": {}}, {**given, **sizes})
    assert declared == count_parameters(Decoder(SHAPE, VOCABULARY, made))["encoding"]
    assert sizes["T"] == (T if limit is None else LIMIT)


@every_name
@every_option
@pytest.mark.parametrize("positions", ["randomized", "offset"])
def test_drawn_positions_train_with_every_option(name: str, options: dict[str, Any], positions: str) -> None:
    own = encoding(name, **options)
    drawing = {
        "randomized": lambda: Randomized(own.shape, max=LIMIT, dense=False),
        "offset": lambda: Offset(own.shape, max=LIMIT),
    }[positions]()
    model = model_of(own, drawing).train()
    pos = model.positions(T, generator_for(3, "family"))
    assert pos[-1] >= T and pos[-1] < LIMIT
    ids = tokens(T)
    model(ids, pos).logsumexp(-1).square().sum().backward()
    for key, parameter in own.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.flatten(1).any(-1).all(), f"{key}: a place without a gradient"
    if name in ("learned", "hybrid"):
        reached = own.get_parameter("table").grad.any(-1)  # type: ignore[union-attr]
        assert (reached.nonzero()[:, 1].unique() == pos).all()
    with torch.no_grad():
        got = model.double()(ids, pos)[0]
        want = naive.decode(model, ids[0].tolist(), pos.tolist(), TokenByToken(own, int(pos[-1])))
    assert (got - want).abs().max() < TOLERANCE


@every_name
@every_option
def test_far_windows_with_every_option(name: str, options: dict[str, Any]) -> None:
    """Finite, causal, the tail alone, prefix-stable where declared, and close to float32 in bf16."""
    model = model_of(encoding(name, limit=None, **options)).eval()
    ids = tokens(16 * T, batch=2)
    changed = ids.clone()
    changed[:, 50:] = (changed[:, 50:] + 1) % VOCABULARY
    with torch.no_grad():
        pos = torch.arange(ids.shape[1])
        whole = model(ids, pos)
        assert whole.isfinite().all()
        assert torch.equal(model(changed, pos)[:, :50], whole[:, :50])
        assert (model(ids, pos, 5) - whole[:, -5:]).abs().max() < 1e-5
        prefix = (model(ids[:, :T], pos[:T]) - whole[:, :T]).abs().max()
        assert (prefix < 1e-5) == model.encoding.prefix_stable
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = model(ids, pos)
    assert (rounded.float() - whole).square().mean().sqrt() < 0.02


@every_name
@every_option
def test_places(name: str, options: dict[str, Any]) -> None:
    made, x = encoding(name, **options), torch.randn(1, 4, SHAPE.d_model)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, generator=generator_for(0, "place"))
        assert parameter.shape[0] == made.places
    again = [not torch.equal(made.embed(x, torch.arange(1, 5), layer), x) for layer in range(SHAPE.n_layers)]
    assert again == [True, options["per_layer"], options["per_layer"]]
    assert made.hooks == {"embed"}


@every_name
def test_concatenation_starts_with_unit_gain(name: str) -> None:
    made = build_encoding(
        name,
        d_model=64,
        n_heads=2,
        head_dim=32,
        n_layers=4,
        train_length=64,
        per_layer=True,
        combine="concat",
    )
    map_ = torch.empty(4, 64, 128)
    made.initialize("joined", map_, generator_for(0, "start"))
    assert map_.std().item() == pytest.approx(128**-0.5, rel=0.02)


@pytest.mark.parametrize("name", ["integer", "learned", "binary"])
def test_concatenated_rows_are_not_rounded_under_autocast(name: str) -> None:
    made = encoding(name, limit=4096, combine="concat")
    for number, parameter in enumerate(made.parameters()):
        torch.nn.init.normal_(parameter, std=0.1, generator=generator_for(number, "round"))
    pos, nothing = torch.tensor([256, 257, 2048, 2049]), torch.zeros(1, 4, SHAPE.d_model)
    exact = made.embed(nothing, pos, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(made.embed(nothing, pos, 0), exact)
    assert not torch.equal(exact[0, 0], exact[0, 1])


def test_a_part_of_a_sum_keeps_its_start() -> None:
    alone = encoding("hybrid", combine="concat")
    made = build_encoding(
        "sum",
        d_model=SHAPE.d_model,
        n_heads=SHAPE.n_heads,
        head_dim=SHAPE.head_dim,
        n_layers=SHAPE.n_layers,
        train_length=T,
        parts=["alibi", {"name": "hybrid", "combine": "concat"}],
    )
    model = Decoder(SHAPE, VOCABULARY, made)
    initialize(model, 0)
    parameters = dict(made.named_parameters())
    assert set(parameters) == {"members.1.table", "members.1.joined"}
    assert parameters["members.1.joined"].std().item() == pytest.approx(
        (2 * alone.shape.d_model) ** -0.5, rel=0.1
    )
    assert made.beyond == "untrained"


def test_rows_must_be_given() -> None:
    with pytest.raises(NotImplementedError):
        Absolute(Shape(16, 2, 8, 1, T), per_layer=False, combine="add").rows(torch.arange(2), 0)

"""Every encoding's formula once more, in plain Python floats, a pair of tokens at a time.

`Example` is one text at given positions: `attention()` and `embedding()` are what the code computes,
`naive_attention()` and `naive_embedding()` what the paper's formula gives.
"""

import cmath
import copy
import itertools
import math
from functools import partial
from operator import mul

import torch
from tiny_model import encoding_of

from posenc.core.seeds import generator_for
from posenc.encodings.building import default_parameters
from posenc.encodings.options import build_options
from posenc.encodings.shared.composed import Composed
from posenc.laws.subject import AnyPositions
from posenc.model.inputs import Heads, Layer
from posenc.model.kernels import attend

CONTIGUOUS = {"name": "contiguous"}
WIDTH, LAYERS, TOKENS, TRAINED, SEED = 8, 2, 20, 16, 5
NEAR = list(range(TOKENS))
POSITIONS = {
    "contiguous": NEAR,
    "far": [65536 - TOKENS + t for t in NEAR],
    "gaps": [0, 1, 2, 7, 8, 30, 31, 33, 100, 101, 104, 200, 256, 257, 300, 512, 700, 1000, 1001, 1023],
    "near and far": [*range(10), *range(65527, 65537)],
}


def dot(a, b):
    assert len(a) == len(b)
    return math.fsum(map(mul, a, b))  # half of the time goes here: a generator takes twice as long


def plus(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def softplus(z):
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


def softmax(scores):
    powers = [math.exp(s - max(scores)) for s in scores]
    return [power / math.fsum(powers) for power in powers]


def entmax15(scores):
    """The threshold by bisection: weights (z/2 - t)^2 above it sum to 1."""
    halves = [s / 2 for s in scores]
    low, high = max(halves) - 1, max(halves)
    for _ in range(100):
        middle = (low + high) / 2
        total = math.fsum(max(half - middle, 0.0) ** 2 for half in halves)
        low, high = (middle, high) if total > 1 else (low, middle)
    return [max(half - low, 0.0) ** 2 for half in halves]


def sinusoid(t, width, base):
    """Row t: sines on even columns, cosines on odd ones."""
    return [
        (math.sin if c % 2 == 0 else math.cos)(t / math.pow(base, (c - c % 2) / width)) for c in range(width)
    ]


def alibi_slope(head, heads):
    """Slope of head 1..H: geometric, else filled up from twice the power of two."""
    power = 2 ** (heads.bit_length() - 1)
    return math.exp2(-8 * (head if head <= power else head - power - 0.5) / power)


def t5_bucket(r, buckets, max_distance):
    """In whole numbers: the largest exact + m with (max/exact)^m <= (r/exact)^h, h = buckets - exact."""
    exact = buckets // 2
    h = buckets - exact
    m = sum(max_distance**n * exact**h <= r**h * exact**n for n in range(1, h))
    return r if r < exact else exact + m


def network(u, layers, leak=0.0):
    """Layers of (leaky) ReLUs, the last one linear."""
    for n, (weights, offsets) in enumerate(layers):
        u = [dot(row, u) + b for row, b in zip(weights, offsets, strict=True)]
        if n < len(layers) - 1:
            u = [max(value, leak * value) for value in u]
    return u


def complex_pairs(x, layout="interleaved"):
    half = len(x) // 2
    first, second = (x[::2], x[1::2]) if layout == "interleaved" else (x[:half], x[half:])
    return [complex(*pair) for pair in zip(first, second, strict=True)]


def rotated_product(q, k, angle, layout="interleaved", width=WIDTH, fade=lambda n: 1.0):
    """q . k with pair n of the first `width` numbers as complex numbers apart by an angle."""
    pairs = zip(complex_pairs(q[:width], layout), complex_pairs(k[:width], layout), strict=True)
    turned = [(a * b.conjugate() * cmath.exp(1j * angle(n))).real * fade(n) for n, (a, b) in enumerate(pairs)]
    return math.fsum(turned) + dot(q[width:], k[width:])


def _masked_heads(example):
    chosen = example.s["masked_heads"]
    return example.heads // 2 if chosen is None else chosen


class Example:
    """One text of random queries, keys, values and inputs; parameters filled with large random numbers."""

    def __init__(
        self,
        name,
        pos=NEAR,
        heads=3,
        layer=1,
        attention_window=None,
        attention_scale="none",
        attention=None,
        **params,
    ):
        self.name, self.pos, self.heads, self.layer = name, pos, heads, layer
        self.window, self.scale = attention_window, attention_scale
        self.chosen = attention or {}
        self.s = {**default_parameters(name), **params}
        self.encoding = encoding_of(name, TRAINED, heads, WIDTH, max(LAYERS, layer + 1), **params)
        generator = torch.Generator().manual_seed(len(pos))
        self.encoding.seed = SEED  # of rows past a table's end
        for parameter in self.encoding.parameters():
            torch.nn.init.normal_(parameter, std=0.5, generator=generator)
        shape = self.encoding.shape
        attention = {"window": self.window, "scale": self.scale, **self.chosen}
        options = build_options(shape, self.encoding, positions=CONTIGUOUS, attention=attention)
        scales = [parameter for option in options for parameter in option.parameters()]
        for parameter in scales:
            if attention is None:
                torch.nn.init.uniform_(parameter, 0.1, 2, generator=generator)
            else:
                torch.nn.init.normal_(parameter, std=0.3, generator=generator)
        if pos != list(range(len(pos))):
            options.append(AnyPositions(shape))
        self.acting = Composed(shape, (self.encoding, *options)) if options else self.encoding
        n, width = len(pos), heads * WIDTH
        self.t = {key: torch.randn(heads, n, WIDTH, generator=generator) for key in "qkv"}
        self.t["x"] = torch.randn(n, width, generator=generator)
        own = {f"encoding.{k}" if k in self.t else k: p for k, p in self.encoding.named_parameters()}
        self.tensors = {**self.t, **own}
        self.of_options = torch.nn.ModuleList(options)
        self.ssmax = [p.tolist() for p in scales]
        self.read()

    def read(self, **changed):
        """Take the numbers of all tensors, float64, for the formulas."""
        self.p = {key: changed.get(key, value).tolist() for key, value in self.tensors.items()}
        self.o = {key.partition(".")[2]: p.tolist() for key, p in self.of_options.named_parameters()}
        self.cache = {}
        self.parts = []
        self.adjust()
        self.parts = [self.part(number, part) for number, part in enumerate(self.s.get("parts", []))]

    def adjust(self):
        """Change queries and keys as the options of the attention do."""
        if self.chosen.get("normalizer") == "asentmax":
            for h, i in itertools.product(range(self.heads), range(len(self.pos))):
                x = self.p["x"][i]
                strength = softplus(dot(self.o["strength"][self.layer][h], x))
                exponent = 2 * math.tanh(dot(self.o["exponent"][self.layer][h], x))
                factor = 1 + strength * math.log(len(self.seen(h, i)) + 1) ** exponent
                self.p["q"][h][i] = [factor * value for value in self.p["q"][h][i]]
        if self.chosen.get("key_offset"):
            moved = MOVED.get(self.name, lambda c: range(WIDTH // 2, WIDTH))(self)
            for h in range(self.heads):
                keys = self.p["k"][h]
                before = [keys[0], *keys[:-1]]
                pairs = zip(keys, before, strict=True)
                self.p["k"][h] = [[(b if n in moved else a)[n] for n in range(WIDTH)] for a, b in pairs]

    def seen(self, h, i):
        return [j for j in range(i + 1) if j == i or self.visible(h, i, j)]

    def normalized(self, h, scores):
        """Return the weights of a row of scores."""
        normalizer = self.chosen.get("normalizer", "softmax")
        if normalizer in ("entmax", "asentmax"):
            return entmax15(scores)
        if normalizer == "softmax":
            return softmax(scores)
        sink = self.o["s"][self.layer][h] if normalizer == "sink" else 0.0
        return softmax([*scores, sink])[:-1]

    def normed(self, h, y):
        """Return what head h returns, after the norm of the outputs."""
        if not self.chosen.get("output_norm"):
            return y
        size = math.sqrt(math.fsum(value * value for value in y) / len(y) + 1e-6)
        return [g * value / size for g, value in zip(self.o["g"][self.layer][h], y, strict=True)]

    def gates(self, h, i):
        """Return the factor of each number that head h returns for query i."""
        kind = self.chosen.get("gate", "none")
        if kind == "none":
            return [1.0] * WIDTH
        rows = self.o["w"][self.layer]
        rows = [rows[h]] * WIDTH if kind == "head" else rows[h * WIDTH : (h + 1) * WIDTH]
        return [sigmoid(dot(row, self.p["x"][i])) for row in rows]

    def once(self, key, make):
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def part(self, number, part):
        """A part of a sum, as an example of its own with the same text."""
        own, prefix = copy.copy(self), f"members.{number}."
        settings = {"name": part} if isinstance(part, str) else part
        own.name = settings["name"]
        own.s = {**default_parameters(own.name), **settings}
        mine = {key.removeprefix(prefix): p for key, p in self.p.items() if key.startswith(prefix)}
        own.p = self.p | {f"encoding.{key}" if key in self.t else key: p for key, p in mine.items()}
        own.parts = [own.part(n, inner) for n, inner in enumerate(own.s.get("parts", []))]
        return own

    def acting_as(self, name):
        return next((one for one in (self, *self.parts) if one.name == name), None)

    def attention(self, wanted=None):
        """What the code computes: (H, wanted, D); of `tape` after the layers before, which change it."""
        n = wanted or len(self.pos)
        q, k, v, x = (self.t[key][None] for key in "qkvx")
        pos = torch.tensor(self.pos)
        acting = self.acting.for_one_pass()
        for layer in range(self.layer if self.name == "tape" else 0):
            attend(Heads(q, k, v), x, Layer(acting, layer, pos))
        return attend(Heads(q[:, :, -n:], k, v), x, Layer(acting, self.layer, pos))[0]

    def naive_attention(self):
        out = torch.zeros(self.heads, len(self.pos), WIDTH, dtype=torch.float64)
        for h in range(self.heads):
            for i in range(len(self.pos)):
                seen = self.seen(h, i)
                factor = self.factor(h, len(seen))
                scores = [factor * SCORES[self.name](self, h, i, j) for j in seen]
                stick, shaw = self.acting_as("stick_breaking"), self.acting_as("shaw")
                weights = stick_breaking(stick, scores) if stick else self.normalized(h, scores)
                values = [shaw_value(shaw, h, i, j) if shaw else self.p["v"][h][j] for j in seen]
                summed = [dot(weights, list(column)) for column in zip(*values, strict=True)]
                gated = [y * gate for y, gate in zip(self.normed(h, summed), self.gates(h, i), strict=True)]
                out[h, i] = torch.tensor(gated, dtype=torch.float64)
        return out

    def visible(self, h, i, j):
        hard = self.acting_as("hard_alibi")
        if hard and h < _masked_heads(hard) and self.r(i, j) > h:
            return False
        if self.name == "rnope_swa" and not free(self) and self.r(i, j) >= (self.s["window"] or TRAINED // 2):
            return False
        if self.name == "pattern" and self.of_layer("windows") and self.r(i, j) >= self.of_layer("windows"):
            return False
        return self.window is None or self.r(i, j) < self.window

    def of_layer(self, key):
        kind = self.s["period"][self.layer % len(self.s["period"])]
        return self.s[key][kind] if self.s.get(key) else None

    def factor(self, h, keys):
        if self.scale == "none":
            return 1.0
        slope = self.ssmax[0][self.layer][h] if self.scale == "ssmax" else 1 / math.log(TRAINED)
        return slope * math.log(keys)

    def embedding(self, layer):
        return self.acting.embed(self.t["x"][None], torch.tensor(self.pos), layer)[0]

    def naive_embedding(self, layer):
        scaled = self.name in ("sinusoidal", "sinusoidal_trainable", "hybrid") and layer == 0
        factor = math.sqrt(self.heads * WIDTH) if scaled else 1.0
        rows = []
        for x, t in zip(self.p["x"], self.pos, strict=True):
            x = [factor * value for value in x]
            if layer == 0 or self.s["per_layer"]:
                row = ROWS[self.name](self, t, layer)
                joined = self.s["combine"] == "concat"
                x = [dot(line, x + row) for line in self.p["joined"][layer]] if joined else plus(x, row)
            rows.append(x)
        return torch.tensor(rows, dtype=torch.float64)

    def r(self, i, j):
        return self.pos[i] - self.pos[j]

    def place(self, key):
        """A parameter of this layer, or the one that all layers share."""
        return self.p[key][self.layer % len(self.p[key])]

    def score(self, h, i, j):
        return dot(self.p["q"][h][i], self.p["k"][h][j]) / math.sqrt(WIDTH)


# --- biases: f(c, head, position of the query, position of the key)
def alibi(c, h, i, j):
    slope = math.exp(c.p["slope"][h]) if "slope" in c.p else alibi_slope(h + 1, c.heads)
    return -slope * (i - j)


def kerple_log(c, h, i, j, prefix=""):
    a, b = (0.01 + softplus(c.p[prefix + key][h]) for key in "ab")
    return -a * math.log(1 + b * (i - j))


def kerple_power(c, h, i, j):
    a, b = 0.01 + softplus(c.p["a"][h]), 0.01 + 1.99 * sigmoid(c.p["b"][h])
    return -a * math.pow(i - j, b)


def sandwich(c, h, i, j):
    """The inner product of two sinusoidal positions, divided by 8 h / H."""
    both = (sinusoid(t, c.s["width"], c.s["base"]) for t in (i, j))
    return dot(*both) / (8 * (h + 1) / c.heads)


def dynamic_bias(c, h, i, j):
    u = math.log(1 + i - j) if c.s["log_distance"] else (i - j) / TRAINED
    first = [[w] for w in c.p["w1"]]
    return network([u], [(first, c.p["b1"]), (c.p["w2"], c.p["b2"]), (c.p["w3"], c.p["b3"])])[h]


def fire(c, h, i, j):
    start = TRAINED / 4 if c.s["threshold"] is None else c.s["threshold"]
    strength, threshold = 1e-6 + softplus(c.place("c")), start * (1e-6 + softplus(c.place("factor")))
    u = math.log(strength * (i - j) + 1) / math.log(strength * max(i, threshold) + 1)
    return network([u], [([[w] for w in c.place("w1")], c.place("b1")), (c.place("w2"), c.place("b2"))])[h]


def t5(c, h, i, j):
    longest = c.s["max_distance"] or max(TRAINED, c.s["buckets"] // 2 + 1)
    return float(c.p["table"][h][t5_bucket(i - j, c.s["buckets"], longest)])


def bam(c, h, i, j):
    location = 2 * math.sinh(c.p["location"][h]) if "location" in c.p else 0.0
    return -math.exp(c.p["scale"][h] + c.p["exponent"][h] * math.log(abs(i - j - location) + 1e-5))


BIASES = {f.__name__: f for f in (alibi, kerple_log, kerple_power, sandwich, dynamic_bias, fire, t5, bam)}


def biased(name):
    return lambda c, h, i, j: c.score(h, i, j) + BIASES[name](c, h, c.pos[i], c.pos[j])


# --- scores: f(c, head, index of the query, index of the key)
def theta(n, width, base):
    return math.exp(-2 * n / width * math.log(base))


def turned(c, h, i, j, angle, **how):
    """The score where pairs of query and key are turned, in the layout that the encoding has."""
    how = {"layout": c.s.get("layout", "interleaved"), **how}
    return rotated_product(c.p["q"][h][i], c.p["k"][h][j], angle, **how) / math.sqrt(WIDTH)


def rope(c, h, i, j):
    width, base = round(WIDTH * c.s.get("fraction", 1.0)), c.s.get("base", 10000.0)
    turning = width // 2 - round(width // 2 * c.s.get("drop_low", 0.0))
    return turned(c, h, i, j, lambda n: (n < turning) * c.r(i, j) * theta(n, width, base), width=width)


def xpos(c, h, i, j):
    def fade(n):
        return math.exp(c.r(i, j) / c.s["scale_base"] * math.log((2 * n / WIDTH + 0.4) / 1.4))

    return turned(c, h, i, j, lambda n: c.r(i, j) * theta(n, WIDTH, c.s["base"]), fade=fade)


def rope_pp(c, h, i, j):
    """Im z is Re of -i z, so RoPE with an angle that is smaller by a right one."""
    real = c.heads - c.heads // 2
    less = math.pi / 2 if h >= real else 0.0
    return turned(c, h % real, i, j, lambda n: c.r(i, j) * theta(n, WIDTH, c.s["base"]) - less)


def clipped_rope(c, h, i, j):
    pairs = c.s["pairs"] or max(2, round(WIDTH / 2 * 20 / 64))
    first = WIDTH // 2 - pairs

    def kept(n):
        if n < first:
            return 1.0
        return 0.0 if c.s["hard"] else math.cos(math.pi * (n - first) / (2 * (pairs - 1))) ** 2

    return turned(c, h, i, j, lambda n: c.r(i, j) * theta(n, WIDTH, c.s["base"]) * kept(n))


def resonance_rope(c, h, i, j):
    def turns(n):
        tokens = round(2 * math.pi * math.pow(c.s["base"], 2 * n / WIDTH))
        return c.r(i, j) % tokens / tokens

    return turned(c, h, i, j, lambda n: 2 * math.pi * turns(n))


def repo(c, h, i, j):
    plain = round(LAYERS * 5 / 16) if c.s["plain_layers"] is None else c.s["plain_layers"]
    if c.layer < plain:
        return turned(c, h, i, j, lambda n: c.r(i, j) * theta(n, WIDTH, c.s["base"]))

    def position(t):
        number, x = c.layer - plain, c.p["x"][t]
        gates = [dot(row, x) for row in c.p["gate"][number]]
        contents = [dot(row, x) for row in c.p["content"][number]]
        inner = [g * sigmoid(g) * content for g, content in zip(gates, contents, strict=True)]
        return dot(c.p["position"][number][h], inner)

    apart = c.once(("repo", h, i), lambda: position(i)) - c.once(("repo", h, j), lambda: position(j))
    return turned(c, h, i, j, lambda n: apart * theta(n, WIDTH, c.s["base"]))


def fope(c, h, i, j):
    """The matrix of every pair, at the query's and at the key's position."""
    turning = [theta(n, WIDTH, c.s["base"]) for n in range(WIDTH // 2)]
    turning = [w for w in turning if 2 * math.pi / w <= TRAINED]
    sizes = (2, c.heads, len(turning), len(turning))
    drawn = torch.randn(sizes, generator=generator_for(SEED, "encoding.series", c.layer)).tolist()

    def moved(x, t):
        out = list(x)
        for m in range(len(turning)):
            cos, sin = math.cos(t * turning[m]), math.sin(t * turning[m])
            for n, w in enumerate(turning):
                a, b = (kind[h][n][m] * c.s["gain"] / math.sqrt(len(turning)) for kind in drawn)
                cos, sin = cos + a * math.cos(t * w), sin + b * math.sin(t * w)
            out[2 * m] = cos * x[2 * m] - sin * x[2 * m + 1]
            out[2 * m + 1] = sin * x[2 * m] + cos * x[2 * m + 1]
        return out

    return dot(moved(c.p["q"][h][i], c.pos[i]), moved(c.p["k"][h][j], c.pos[j])) / math.sqrt(WIDTH)


def grape(c, h, i, j):
    """Rotations one plane after another, by exp(t L) = 1 + sin(t) L + (1 - cos(t)) L^2, L = b a^T - a b^T."""
    q, k = c.p["q"][h][i], c.p["k"][h][j]
    for n in range(WIDTH // 2 if c.s["rotation"] else 0):
        t = -c.r(i, j) * theta(n, WIDTH, c.s["base"]) * math.exp(c.place("own.log_factor")[n] / 16)
        once = [0.0] * WIDTH
        once[2 * n], once[2 * n + 1] = -k[2 * n + 1], k[2 * n]
        twice = [-value if m // 2 == n else 0.0 for m, value in enumerate(k)]
        k = [a + math.sin(t) * b + (1 - math.cos(t)) * d for a, b, d in zip(k, once, twice, strict=True)]
    return dot(q, k) / math.sqrt(WIDTH) + GRAPE_BIASES[c.s["additive"]](c, h, i, j)


def gated(c, h, i, j):
    on_q = dot(c.place("own.query")[h], c.p["q"][h][i]) / math.sqrt(WIDTH)
    on_k = dot(c.place("own.key")[h], c.p["k"][h][j]) / math.sqrt(WIDTH)
    slope = softplus(c.place("own.rate")[h]) * alibi_slope(h + 1, c.heads)
    return -c.r(i, j) * slope * (softplus(on_q) + softplus(on_k))


def along_path(c, h, i, j):
    width = c.s["path_width"]

    def p(token):
        own = c.place("own.map")[h * width : (h + 1) * width]
        made = [dot(row, c.p["x"][token]) for row in own]
        mean = math.sqrt(dot(made, made) / len(made) + torch.finfo(torch.float32).eps)
        return [value / mean for value in made]

    between = range(j + 1, i + 1)
    both = (rotated_product(p(i), p(t), lambda n, t=t: -c.pos[t], width=width) for t in between)
    return alibi_slope(h + 1, c.heads) * math.fsum(math.log(sigmoid(one / width)) for one in both)


GRAPE_BIASES = {
    "none": lambda c, h, i, j: 0.0,
    "gated": gated,
    "forget": lambda c, h, i, j: -forgotten(c, h, i, j, "fox."),
    "path": along_path,
}


def tape(c, h, i, j, layer=None):
    e = tape_positions(c, c.layer if layer is None else layer)
    q, k = complex_pairs(c.p["q"][h][i]), complex_pairs(c.p["k"][h][j])
    terms = zip(q, e[h, i], k, e[h, j], strict=True)
    return sum((a * b * (d * f).conjugate()).real for a, b, d, f in terms) / math.sqrt(WIDTH)


def tape_positions(c, layer):
    """Complex positions of every head and token before the attention of a layer."""
    if layer in c.cache:
        return c.cache[layer]
    heads, pairs, e = range(c.heads), range(WIDTH // 2), {}
    for i, t in enumerate(c.pos):
        if layer == 0:
            first = [cmath.exp(1j * t * theta(n, WIDTH, c.s["base"])) for n in pairs]
            e.update({(h, i): first for h in heads})
            continue
        old = tape_positions(c, layer - 1)
        a, u, w, v = (c.p[key][layer - 1] for key in ("mix", "up", "gate", "down"))
        weights = [softmax([tape(c, g, i, j, layer - 1) for j in range(i + 1)]) for g in heads]
        mixed = [[sum(p * old[g, j][n] for j, p in enumerate(weights[g])) for n in pairs] for g in heads]
        new = [[old[h, i][n] + sum(a[h][g] * mixed[g][n] for g in heads) for n in pairs] for h in heads]
        gates = [z * sigmoid(z) for z in (dot(row, c.p["x"][i]) for row in w)]
        inner = [[sum(b * new[g][n] for g, b in enumerate(row)) for n in pairs] for row in u]
        for h in heads:
            added = [sum(x * g * one[n] for x, g, one in zip(v[h], gates, inner, strict=True)) for n in pairs]
            e[h, i] = [x + y for x, y in zip(new[h], added, strict=True)]
    c.cache[layer] = e
    return e


def hope(c, h, i, j):
    slowest = 2 * math.pi * c.s["turns"] / TRAINED  # so often within the training length
    angles = [w if w >= slowest else 0.0 for w in (theta(n, WIDTH, c.s["base"]) for n in range(WIDTH // 2))]
    return turned(c, h, i, j, lambda n: c.r(i, j) * angles[n])


def pope(c, h, i, j):
    """With the paper's sign: cos((j - i) theta + delta)."""
    q, k, delta = c.p["q"][h][i], c.p["k"][h][j], c.place("delta")[h]
    angles = [-c.r(i, j) * math.pow(c.s["base"], -n / WIDTH) + delta[n] for n in range(WIDTH)]
    terms = (softplus(a) * softplus(b) * math.cos(angle) for a, b, angle in zip(q, k, angles, strict=True))
    return math.fsum(terms) / math.sqrt(WIDTH)


def free(c):
    return (c.layer + 1) % min(c.s["every"], LAYERS) == 0


def pattern(c, h, i, j):
    part = c.parts[c.s["period"][c.layer % len(c.s["period"])]]
    seen = sum(c.visible(h, i, other) for other in range(i + 1))
    step = c.s["floor_scale"] or TRAINED // 8
    factors = {"logn": math.log(seen) / math.log(TRAINED)}
    factors["floor"] = 1 + c.s["floor_weight"] * math.log(1 + (c.pos[i] + 1) // step)
    return factors.get(c.of_layer("scales"), 1.0) * SCORES[part.name](part, h, i, j)


def scale_invariant(c, h, i, j):
    # a and m as the paper solves them from its two conditions, with alpha = beta = e^(1/2)
    alpha = beta = math.exp(0.5)
    a = math.sqrt(2 * (math.log(c.r(i, j) / c.s["tau"] + 1) - math.log(alpha) + beta / alpha))
    return a * rope(c, h, i, j) - a**2 + beta / alpha


def forgotten(c, h, i, j, prefix=""):
    w, b = c.place(prefix + "gate")[h], c.place(prefix + "offset")[h]
    return sum(softplus(-(dot(w, c.p["x"][m]) + b)) for m in range(j + 1, i + 1))


def cable(c, h, i, j):
    gain = softplus(dot(c.place("gain")[h], c.p["x"][i])) if c.s["weighted"] else 1.0
    slopes = [max(0.0, dot(c.place("slope")[h], c.p["x"][m])) for m in range(j + 1, i + 1)]
    return c.score(h, i, j) - gain * math.fsum(slopes)


def carope(c, h, i, j):
    w, between = c.place("frequency")[h], range(j + 1, i + 1)

    def angle(n):
        return math.fsum((1 / (1 + softplus(dot(w, c.p["x"][m])))) ** (n + 1) for m in between)

    return turned(c, h, i, j, angle)


def selective_rope(c, h, i, j):
    def unit(x):
        share = [x[g * WIDTH : (g + 1) * WIDTH] for g in range(c.heads)]
        return [value / math.sqrt(dot(part, part)) for part in share for value in part]

    texts, pairs = c.once("units", lambda: [unit(x) for x in c.p["x"]]), WIDTH // 2

    def phi(n, m):
        row, taps = c.place("up")[h * pairs + n], c.place("taps")[h * pairs + n]
        low = {t: [dot(line, texts[t]) for line in c.place("down")] for t in range(max(m - 3, 0), m + 1)}
        gate = sigmoid(dot(c.place("gate")[h], texts[m]) + c.place("offset")[h]) if c.s["gate"] else 1.0
        return gate * math.fsum(taps[3 - (m - t)] * dot(row, u) for t, u in low.items())

    def angle(n):
        phis = (c.once((h, n, m), lambda m=m: phi(n, m)) for m in range(j + 1, i + 1))
        return theta(n, WIDTH, c.s["base"]) * math.fsum(phis)

    return turned(c, h, i, j, angle)


def path(c, h, i, j):
    """The maps applied to the key one token after another."""

    def token(s):
        low = [[dot(line, x) for line in c.place("down")] for x in c.p["x"][max(s - 2, 0) : s + 1]]
        mine = slice(h * WIDTH, (h + 1) * WIDTH)
        own = zip(c.place("taps")[mine], c.place("up")[mine], strict=True)
        u = [dot(taps[-len(low) :], [dot(up, one) for one in low]) for taps, up in own]
        return u, 2 * sigmoid(dot(c.place("strength")[h], c.p["x"][s]) + c.place("offset")[h])

    k = c.p["k"][h][j]
    for s in range(j + 1, i + 1):
        u, beta = c.once((h, s), lambda s=s: token(s))
        share = beta * dot(u, k) / dot(u, u)
        k = [value - share * part for value, part in zip(k, u, strict=True)]
    gates = forgotten(c, h, i, j, "fox.") if c.s["forget"] else 0.0
    return dot(c.p["q"][h][i], k) / math.sqrt(WIDTH) - gates


def cope(c, h, i, j):
    table = c.place("table")
    p = min(math.fsum(sigmoid(c.score(h, i, m)) for m in range(j, i + 1)), len(table) - 1)
    low, part = math.floor(p), p - math.floor(p)
    row = [(1 - part) * a + part * b for a, b in zip(table[low], table[math.ceil(p)], strict=True)]
    return c.score(h, i, j) + dot(c.p["q"][h][i], row)


def dape(c, h, i, j):
    heads = range(c.heads)
    z = [c.score(g, i, j) for g in heads]
    bias = alibi if c.s["bias"] == "alibi" else partial(kerple_log, prefix="static.")
    b = [bias(c, g, c.pos[i], c.pos[j]) for g in heads]
    layers = [(c.place("w1"), c.place("b1")), (c.place("w2"), c.place("b2"))]
    return z[h] + b[h] + network(z + b, layers, leak=0.01)[h]


def shaw_row(c, key, h, i, j):
    tables = c.place(key)
    return tables[h % len(tables)][min(c.r(i, j), c.s["clip"])]


def shaw(c, h, i, j):
    return dot(c.p["q"][h][i], plus(c.p["k"][h][j], shaw_row(c, "keys", h, i, j))) / math.sqrt(WIDTH)


def shaw_value(c, h, i, j):
    return plus(c.p["v"][h][j], shaw_row(c, "added", h, i, j))


def transformer_xl(c, h, i, j):
    wave = sinusoid(c.r(i, j), c.heads * WIDTH, c.s["base"])
    mapped = [dot(row, wave) for row in c.place("w")[h]]
    q, k = c.p["q"][h][i], c.p["k"][h][j]
    content, position = dot(plus(q, c.place("u")[h]), k), dot(plus(q, c.place("encoding.v")[h]), mapped)
    return (content + position) / math.sqrt(WIDTH)


def stick_breaking(c, scores):
    """Weights of the keys seen, the oldest first and the token itself last."""
    left, nearest_first = 1.0, []
    for z in reversed(scores[:-1]):
        nearest_first.append(left * sigmoid(z))
        left *= 1 - sigmoid(z)
    return [*reversed(nearest_first), left if c.s["remainder"] == "self" else 0.0]


SCORES = {
    **{name: biased(name) for name in BIASES},
    "nope": Example.score,
    "headscale": lambda c, h, i, j: c.place("scale")[h] * c.score(h, i, j),
    "hard_alibi": Example.score,
    "stick_breaking": Example.score,
    "rnope_swa": lambda c, h, i, j: c.score(h, i, j) if free(c) else rope(c, h, i, j),
    "fox": lambda c, h, i, j: c.score(h, i, j) - forgotten(c, h, i, j),
    **{f.__name__: f for f in (rope, rope_pp, fope, grape, tape, xpos, hope, pope, pattern, scale_invariant)},
    **{f.__name__: f for f in (clipped_rope, resonance_rope, repo)},
    **{f.__name__: f for f in (cable, carope, selective_rope, path, cope, dape, shaw, transformer_xl)},
    "sum": lambda c, h, i, j: (
        c.score(h, i, j) + math.fsum(SCORES[part.name](part, h, i, j) - c.score(h, i, j) for part in c.parts)
    ),
}


def still_pairs(c, is_still):
    """The numbers of the pairs that do not turn."""
    return [m for m in range(WIDTH) if is_still(m // 2)]


def still_beyond(c):
    return range(round(WIDTH * c.s["fraction"]), WIDTH)


# Where an encoding rotates a part of the head: the numbers that it leaves, f(c).
MOVED = {
    "clipped_rope": lambda c: range(WIDTH - 2, WIDTH),
    "rope": still_beyond,
    "scale_invariant": still_beyond,
    "rnope_swa": lambda c: range(WIDTH // 2, WIDTH) if free(c) else (),
    "fope": lambda c: still_pairs(c, lambda n: 2 * math.pi / theta(n, WIDTH, c.s["base"]) > TRAINED),
    "hope": lambda c: still_pairs(
        c, lambda n: c.s["turns"] * 2 * math.pi / theta(n, WIDTH, c.s["base"]) > TRAINED
    ),
}


# --- rows of the absolute encodings: f(c, position, place)
def tabled(c, t, place):
    table = c.p["table"][place]
    if t < len(table) or c.s["beyond"] == "clamp":
        return list(table[min(t, len(table) - 1)])
    names = (f"encoding.table[{t}]", *([place] if place else []))
    row = torch.randn(len(table[0]), generator=generator_for(SEED, *names)) * (c.heads * WIDTH) ** -0.5
    return [float(value) for value in row]


def hybrid(c, t, place):
    d = c.heads * WIDTH
    learned = [math.sqrt(d) * value for value in tabled(c, t, place)]
    return learned + sinusoid(t, d - len(learned), c.s["base"])


def trainable(c, t, place):
    """Sines and cosines as parts of e^(i (w t + f))."""
    both = zip(c.p["frequency"][place], c.p["phase"][place], strict=True)
    return [part for w, f in both for z in [cmath.exp(1j * (w * t + f))] for part in (z.imag, z.real)]


def binary(c, t, place):
    digits = reversed(format(t, "b"))
    rows = [row for digit, row in zip(digits, c.p["table"][place], strict=False) if digit == "1"]
    return [math.fsum(column) for column in zip(*rows, strict=True)] or [0.0] * (c.heads * WIDTH)


ROWS = {
    "integer": lambda c, t, place: [t * w for w in c.p["step"][place]],
    "normalized": lambda c, t, place: [t / max(c.pos[-1], 1) * w for w in c.p["direction"][place]],
    "binary": binary,
    "learned": tabled,
    "hybrid": hybrid,
    "sinusoidal": lambda c, t, place: sinusoid(t, c.heads * WIDTH, c.s["base"]),
    "sinusoidal_trainable": trainable,
}

# Every encoding with the parameters that change its formula.
CASES = [
    *((name, {}) for name in sorted(SCORES)),
    ("alibi", {"learned_slopes": True}),
    ("t5", {"buckets": 8, "max_distance": 12}),
    ("dynamic_bias", {"hidden": 5, "log_distance": False}),
    ("fire", {"shared": True, "threshold": 10.5}),
    ("sandwich", {"base": 500.0, "width": 6}),
    ("rope", {"layout": "half", "base": 500000.0}),
    ("rope", {"fraction": 0.5}),
    ("rope", {"drop_low": 0.5, "layout": "half"}),
    ("rope_pp", {"layout": "half", "base": 500.0}),
    ("fope", {"base": 10.0, "gain": 0.6}),
    ("grape", {"additive": "gated"}),
    ("grape", {"additive": "forget", "rotation": True, "base": 500.0}),
    ("grape", {"additive": "path", "rotation": True, "path_width": 4}),
    ("grape", {"additive": "none", "rotation": True}),
    ("tape", {"base": 500.0, "width": 3}),
    ("xpos", {"layout": "half", "scale_base": 600.0, "base": 500.0}),
    ("hope", {"layout": "half", "turns": 0.01}),
    ("clipped_rope", {"layout": "half", "pairs": 3, "base": 100.0}),
    ("clipped_rope", {"pairs": 3, "hard": True}),
    ("resonance_rope", {"layout": "half", "base": 50.0}),
    ("bam", {"learned_location": True}),
    ("repo", {"plain_layers": 0, "base": 500.0}),
    ("pope", {"base": 500.0}),
    ("rnope_swa", {"every": 5, "window": 3, "layout": "half"}),
    ("hard_alibi", {"masked_heads": 1}),
    ("pattern", {"windows": [None, 4]}),
    ("pattern", {"parts": ["rope", "t5"], "windows": [None, 4], "scales": ["none", "floor"]}),
    ("pattern", {"parts": ["hope", "rope", "fox"], "period": [1, 2], "windows": [1, 5, 9], "scales": []}),
    ("sum", {"parts": ["hard_alibi", "rope"]}),
    ("scale_invariant", {"fraction": 0.0}),
    ("scale_invariant", {"fraction": 1.0, "layout": "half", "tau": 3.0}),
    ("cable", {"weighted": False}),
    ("selective_rope", {"gate": False, "rank": 3, "base": 50.0}),
    ("path", {"forget": True, "rank": 3}),
    ("cope", {"p_max": 9, "shared": True}),
    ("dape", {"bias": "alibi", "hidden": 3}),
    ("shaw", {"clip": 3, "per_head": True}),
    ("transformer_xl", {"base": 500.0}),
    ("stick_breaking", {"remainder": "self"}),
    ("sum", {"parts": ["t5", "fox", {"name": "rope", "layout": "half"}, "cable"]}),
    ("sum", {"parts": ["stick_breaking", "shaw", "hope", "fire"]}),
    ("sum", {"parts": ["transformer_xl", {"name": "sum", "parts": ["pope", "alibi"]}]}),
]

"""The laws: what logits depend on, and of numbers: exactness, gradients, counts, initial values."""

import contextlib
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load, save
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.laws.subject import (
    FAR,
    LONGEST,
    Float64,
    NotApplicableError,
    Subject,
    Verdict,
    bounded,
    changed_from,
    has_positions,
    identical,
    largest,
    logits,
    require,
    tokens,
    within,
)
from posenc.model import kernels
from posenc.model.decoder import Decoder, count_parameters

# Float32 logits of variance 1 by another kernel or other block sizes: 1e-6 is usual, 1e-5 with counts over
# 2048 keys. Faults begin at 1e-2.
SAME = 3e-5
SEEN = 1e-3  # more than noise
BLOCKS = 1e-4  # sums over keys that start at a block's first query round by up to 2e-5; faults give 1e-2
NEVER = 1 << 60  # a number of keys that no kernel starts at
SHIFTED = 5e-5  # cosines of other angles round differently: 2e-6 is usual; float32 angles 3e-4
# Logits of variance 1 agree to 6e-6, at widths of 32 to 256 alike. Angles in float32 are off by 2e-4, tables
# in bf16 by 4e-3.
FLOAT32 = 5e-5
# Root mean square over T tokens, logits of variance 1: 0.005 to 0.008 with two layers, at most 0.017 with
# four. A sum kept in bf16 is off by 0.15 at 8T.
BF16 = 0.03
GROWTH = 1.5  # of the error with the length

# --- not the future, the batch, the kernel, past calls or the text's length


def causal(subject: Subject) -> Verdict:
    """Changed future tokens leave past logits bit-identical."""
    model, n = subject.fresh(), subject.longest(2)
    ids = tokens(model, n)
    before = logits(model, ids)
    cuts = (1, n // 4, n // 2 - 1, n // 2, n - 1)
    for cut in cuts:
        after, changed = logits(model, changed_from(ids, cut, model)), f"tokens changed from {cut} on"
        identical(before[:, :cut], after[:, :cut], f"{changed} move logits before them")
        require(largest(before[:, cut:], after[:, cut:]) > SEEN, f"{changed} change nothing")
    return Verdict("pass", f"bit for bit at {len(cuts)} cuts")


def prefix(subject: Subject) -> Verdict:
    """A longer text leaves the logits of its prefix alone, unless declared."""
    length = subject.train_length
    longer = subject.windows({length + 1, LONGEST * length, max(kernels.CAUSAL_FROM, LONGEST * length) + 4})
    if not longer:
        raise NotApplicableError(subject.bounded or "no longer window has positions")
    off = 0.0
    for n in longer:
        model = subject.fresh()
        ids = tokens(model, n, batch=1 if n > LONGEST * length else 2)
        moved = largest(logits(model, ids)[:, :length], logits(model, ids[:, :length]))
        if subject.declared.prefix_stable:
            within(moved, SAME, f"a text of {n} tokens moves the logits of its first {length}")
        off = max(off, moved)
    if not subject.declared.prefix_stable:
        require(off > SAME, "declares that a longer text changes its prefix, and it does not", f"{off:.1e}")
        return Verdict("n/a", f"{off:.1e}", "declared: a longer text changes its prefix")
    return Verdict("pass", f"{bounded(off, SAME)} up to {longer[-1]} tokens")


def order(subject: Subject) -> Verdict:
    """With two layers or more, the order of the past changes the last output.

    One layer without positions outputs a mean over the past, in whatever order.
    """
    model, n = subject.fresh(), subject.train_length
    if len(model.blocks) < 2:
        raise NotApplicableError("one layer: without positions it cannot see the order of the past")
    ids = torch.arange(n)[None] % model.vocab_size
    moved = ids.clone()
    moved[:, : n - 1] = ids[:, : n - 1].flip(-1)
    off = largest(logits(model, ids)[:, -1], logits(model, moved)[:, -1])
    require(off > SEEN, "the past turned round leaves the last output as it is", f"{off:.1e}")
    return Verdict("pass", f"{off:.1e} (at least {SEEN:.0e})")


def shift(subject: Subject) -> Verdict:
    """If relative: logits stay when all positions shift alike, to 65 536."""
    if not subject.declared.relative:
        raise NotApplicableError("not declared relative")
    model, n = subject.anywhere(subject.fresh()), subject.longest(2)
    ids, pos = tokens(model, n), torch.arange(n)
    before, off = logits(model, ids, pos), 0.0
    for by in (1, 1000, FAR - LONGEST * subject.train_length):
        try:
            moved = logits(model, ids, pos + by)
        except ValueError as error:
            raise NotApplicableError(f"refuses far positions: {error}") from error
        reason = f"logits move when all positions move by {by}"
        off = max(off, within(largest(before, moved), SHIFTED, reason))
    return Verdict("pass", bounded(off, SHIFTED))


def positions(subject: Subject) -> Verdict:
    """Positions are increasing whole numbers, and used if and only if declared."""
    length = subject.train_length
    for training in (True, False):
        model = subject.fresh().train(training)
        pos = model.positions(length, generator_for(1, "law"))
        is_index = pos.shape == (length,) and pos.dtype == torch.int64
        require(is_index, f"positions are {pos.dtype} {tuple(pos.shape)}")
        increasing = int(pos[0]) >= 0 and bool((pos.diff() > 0).all())
        require(increasing, "positions do not increase from 0 or above")
        again = model.positions(length, generator_for(1, "law"))
        identical(pos, again, "positions depend on more than their generator")
    model, n = subject.anywhere(subject.fresh()), length // 2
    ids, pos = tokens(model, n), torch.arange(n)
    before, used = logits(model, ids, pos), subject.declared.uses_positions
    for change, moved in {
        "a gap in the middle": pos + n * (pos >= n // 2),
        "a stretch": 3 * pos,  # alone it is too little: a share of the length does not change
        "a long stretch": (FAR - 1) // n * pos,
    }.items():
        off = largest(before, logits(model, ids, moved))
        if used and off > SAME:
            return Verdict("pass", f"{off:.1e} by {change}")
        require(used or off == 0, f"declared unused, and {change} changes logits", f"{off:.1e}")
    require(not used, "declared used, and no change of positions changes logits")
    return Verdict("pass", "0", "declared: uses no positions")


def penalty(subject: Subject) -> Verdict:
    """If a penalty: its bias never rises with the distance.

    Of queries near, past T and far, over all distances to 8T and some beyond.
    """
    encoding = subject.declared
    if not encoding.penalty:
        raise NotApplicableError("not declared a penalty")
    if not encoding.hooks & {"bias", "distance_bias"}:
        raise NotApplicableError("its penalty is made of the text, not of distances")
    model = subject.fresh().eval()
    near = subject.train_length * LONGEST
    fallen = 0.0
    for layer in range(len(model.blocks)):
        for at in (subject.train_length - 1, near, FAR - 1):
            r = torch.unique(torch.cat((torch.arange(near + 1), 2 ** torch.arange(17))).clamp_max(at))
            with torch.no_grad():  # the oldest key first
                bias = model.effective_encoding.bias(torch.tensor([at]), at - r.flip(0), layer)[:, 0].flip(-1)
            require(bool(bias.isfinite().all()), f"its bias at position {at} is not finite")
            rise = bias.diff(dim=-1) - 1e-6 * bias[:, 1:].abs()  # float32 rounds
            require(bool((rise <= 0).all()), "its bias rises with the distance", f"{bias.diff().max():.1e}")
            fallen = max(fallen, (bias[:, 0] - bias[:, -1]).max().item())
    require(fallen > 0, "declares a penalty, and its bias is the same at every distance")
    return Verdict("pass", f"falls by up to {fallen:.3g}")


def batch(subject: Subject) -> Verdict:
    """Other texts in a batch and torch's random state leave a text's logits bit-identical.

    A run neither seeds nor saves torch's global generator: an encoding that draws from it cannot be resumed.
    """
    model = subject.fresh()
    ids = tokens(model, subject.train_length, batch=4)
    others = changed_from(ids, 0, model)
    others[0] = ids[0]
    for where in ("in training", "in evaluation"):
        made = []
        for seed, texts in enumerate((ids, ids, others)):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                made.append(logits(model, texts, training=where == "in training")[0])
        identical(made[0], made[1], f"the same text has other logits the second time {where}")
        identical(made[0], made[2], f"other texts in the batch move a text's logits {where}")
    return Verdict("pass", "bit for bit beside three others, and twice")


def trace(subject: Subject) -> Verdict:
    """No number depends on what this process computed before.

    Train at T, evaluate long, use bf16 and run a model of another size in between.
    """
    model, length, longest = subject.fresh(), subject.train_length, subject.longest()
    short, long = tokens(model, length), tokens(model, longest)
    far = logits(subject.fresh(), long)  # of a model that never saw T
    model.train()
    model(short, model.positions(length, generator_for(0, "law"))).sum().backward()
    near = logits(model, short)
    at_short, at_long = (f"differ: logits at {n} tokens" for n in (length, longest))
    identical(logits(model, long), far, f"{at_long} after training at {length}, and of a fresh model")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits(model, long)
    identical(logits(model, short), near, f"{at_short}, before and after longer windows")
    with contextlib.suppress(UserError):  # settings that fit this T alone
        other = subject.fresh(1, context_length=2 * length)
        for n in (length, 2 * longest):  # which would overwrite a table shared by the process
            if has_positions(other, n):
                logits(other, tokens(other, n, batch=1))
    identical(logits(model, short), near, f"{at_short}, before and after another model")
    identical(logits(model, long), far, f"{at_long}, before and after another model")
    identical(logits(subject.fresh(), short), near, f"{at_short}, and of a fresh model")
    return Verdict("pass", f"bit for bit at {length} and {longest} tokens")


def weights(subject: Subject) -> Verdict:
    """Weights alone make the model again, at T and at 8T."""
    model, other = subject.fresh(), subject.fresh(1)
    texts = [tokens(model, n) for n in sorted({subject.train_length, subject.longest()})]
    wanted = [logits(model, ids) for ids in texts]
    for ids in texts:
        logits(other, ids)
    buffers = ", ".join(sorted(set(model.state_dict()) - {name for name, _ in model.named_parameters()}))
    reason = f"saved buffers tie weights to their length: {buffers} (persistent=False keeps them out)"
    require(not buffers, reason)
    for to, of in zip(other.modules(), model.modules(), strict=True):
        if hasattr(of, "seed"):  # of values that are drawn and never trained; a run has it in its settings
            to.seed = of.seed
    other.load_state_dict(load(save({k: v.contiguous() for k, v in model.state_dict().items()})), strict=True)
    for ids, want in zip(texts, wanted, strict=True):
        reason = f"differ: logits at {ids.shape[1]} tokens, before and after loading"
        identical(logits(other, ids), want, reason)
    parts = subject.fresh().encoding.modules()
    plain = [name for part in parts for name, value in vars(part).items() if isinstance(value, Tensor)]
    require(not plain, f"tensors that stay on the CPU: {', '.join(plain)} (register_buffer moves them along)")
    return Verdict("pass", f"bit for bit at {' and '.join(str(ids.shape[1]) for ids in texts)} tokens")


def blocks(subject: Subject) -> Verdict:
    """The same numbers in small blocks of queries, at once, fused, or of the last tokens alone."""
    model, n = subject.fresh(), subject.longest(4)
    ids = tokens(model, n)
    scores = ids.shape[0] * model.shape.n_heads * n  # of one query
    with _kernels():
        whole, off = logits(model, ids), 0.0
    for changed, which in (
        ({"MAX_SCORES": 3 * scores}, "blocks of three queries"),
        ({"MAX_SCORES": scores}, "queries one by one"),
        ({"CAUSAL_FROM": 1}, "the fused kernel's numbers"),
        ({"MASKED_FROM": 1, "MASKED_QUERIES": 3}, "the fused kernel's numbers with a mask"),
    ):
        with _kernels(**changed):
            found = largest(logits(model, ids), whole)
        off = max(off, within(found, BLOCKS, f"{which} differ from all at once"))
    for wanted in (1, 5, n // 2):  # as evaluation asks for them
        found, which = largest(logits(model, ids, wanted=wanted), whole[:, -wanted:]), f"last {wanted} of {n}"
        off = max(off, within(found, BLOCKS, f"the {which} tokens alone differ from the end of all"))
    return Verdict("pass", bounded(off, BLOCKS))


def _kernels(**changed: int) -> Any:
    """Return a context that changes constants of the kernels; otherwise no fused one is used."""
    constants: dict[str, Any] = {"CAUSAL_FROM": NEVER, "MASKED_FROM": NEVER, **changed}
    return patch.multiple(kernels, **constants)


def options(subject: Subject) -> Verdict:
    """Options (per_layer, positions, window, scale) combine with it or are refused by name."""
    taken, refused = [], []
    length = subject.train_length
    choices: dict[str, dict[str, Any]] = {
        "per_layer": {"encoding": {"per_layer": True}},
        "randomized": {"positions": {"name": "randomized", "max": None, "dense": False}},
        "offset": {"positions": {"name": "offset", "max": None}},
        "window": {"attention": {"window": length // 2}},
        "logn": {"attention": {"scale": "logn"}},
        "ssmax": {"attention": {"scale": "ssmax"}},
    }
    for option, changes in choices.items():
        try:
            model = subject.fresh(**changes)
        except UserError as error:
            require(option in error.text(), f"{option} is refused without being named: {error.text()}")
            refused.append(option)
            continue
        taken.append(option)
        model.train()
        model(tokens(model, length), model.positions(length, generator_for(0, "law")))
        n = subject.longest(LONGEST)
        ids = tokens(model, n)
        before, after = logits(model, ids), logits(model, changed_from(ids, n // 2, model))
        require(bool(before.isfinite().all()), f"with {option}: not finite at {n} tokens")
        past = slice(n // 2)
        identical(before[:, past], after[:, past], f"with {option}: the future changes logits of the past")
    return Verdict("pass", ", ".join(taken), f"refused: {', '.join(refused)}" if refused else "")


# --- numbers


def float32(subject: Subject) -> Verdict:
    """Float32 is as good as float64 at positions to 65 536."""
    model = subject.fresh()
    pos = far_positions(subject, model)
    ids = tokens(model, len(pos))
    rounded = logits(model, ids, pos)
    with Float64():
        wide = subject.anywhere(subject.fresh())
        with torch.no_grad():
            for to, of in zip(wide.parameters(), model.parameters(), strict=True):
                to.copy_(of)
        exact = logits(wide, ids, pos)
    reason = f"float32 differs from float64 at positions to {FAR - 1}"
    return Verdict("pass", bounded(within(largest(rounded.double(), exact), FLOAT32, reason), FLOAT32))


def bf16(subject: Subject) -> Verdict:
    """Bf16 and fp32 are finite and agree, alike at every length to 8T, and at positions to 65 536.

    The last T tokens of every length are compared, where errors add up. Up to 256 tokens every position is
    exact in bf16; that later ones are not shows far out.
    """
    model, length, refused = subject.fresh(), subject.train_length, ""
    lengths = subject.windows(length * times for times in (1, 2, 4, LONGEST))
    off = [_bf16_off(model, n, None, length, f"at {n} tokens") for n in lengths]
    require(max(off) < GROWTH * off[0], f"bf16 is {max(off) / off[0]:.1f} times as far off at longer windows")
    try:
        pos = far_positions(subject, model)
        off.append(_bf16_off(model, len(pos), pos, length, f"at positions to {FAR - 1}"))
    except NotApplicableError as error:
        refused = str(error)
    return Verdict("pass", bounded(max(off), BF16), refused)


def _bf16_off(model: Decoder, n: int, pos: Tensor | None, last: int, where: str) -> float:
    """Return the difference of bf16 and float32 over the last tokens of a window of n."""
    ids = tokens(model, n)
    exact = logits(model, ids, pos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits(model, ids, pos)
    found = exact.dtype, rounded.dtype
    require(found == (torch.float32, torch.bfloat16), f"logits are {found} in float32 and bf16 {where}")
    off = (rounded.float() - exact).square().mean(dim=(0, 2)).sqrt()  # (n,)
    return within(off[-last:].mean().item(), BF16, f"bf16 and float32 differ {where}")


def far_positions(subject: Subject, model: Decoder) -> Tensor:
    """Return T positions from zero on and T below FAR, or 2T below FAR, (2T,), that the model accepts."""
    subject.anywhere(model)
    length = subject.train_length
    near = torch.arange(length)
    reason = ""
    for pos in (torch.cat((near, FAR - length + near)), torch.arange(FAR - 2 * length, FAR)):
        try:
            logits(model, tokens(model, len(pos)), pos)
        except ValueError as error:
            reason = f"refuses far positions: {error}"
        else:
            return pos
    raise NotApplicableError(reason)


def gradient(subject: Subject) -> Verdict:
    """A finite gradient reaches every parameter, in fp32 and bf16."""
    for enabled in (False, True):
        model = subject.fresh().train()
        n, where = subject.train_length, " in bf16" if enabled else ""
        pos = model.positions(n, generator_for(0, "law"))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = model(tokens(model, n, batch=4), pos)
        out.float().logsumexp(-1).square().sum().backward()
        for name, parameter in model.named_parameters():
            require(parameter.grad is not None, f"no gradient reaches {name}{where}")
            assert parameter.grad is not None
            require(bool(parameter.grad.isfinite().all()), f"the gradient of {name} is not finite{where}")
            by_layer = name.startswith("encoding.") and parameter.shape[0] == len(model.blocks)
            parts = parameter.grad if by_layer and parameter.ndim > 1 else parameter.grad[None]
            for layer, grad in enumerate(parts):
                part = f"{name}[{layer}]" if len(parts) > 1 else name
                require(bool((grad != 0).any()), f"the gradient of {part} is zero{where}")
    every, own = (len(list(module.parameters())) for module in (model, model.encoding))
    return Verdict("pass", f"{every} tensors, {own} of its own")


def count(subject: Subject) -> Verdict:
    """The declared number of parameters is the real one."""
    model = subject.fresh()
    encoding = model.encoding
    declared = encoding.learned_parameters()
    if declared is None:
        raise NotApplicableError("declares no count (learned_parameters)")
    real = count_parameters(model)["encoding"]
    figure = f"{declared:,} declared, {real:,} there"
    require(declared == real, f"learned = {encoding.learned!r} is not what it has", figure)
    return Verdict("pass", f"{real:,}", f"learned = {encoding.learned or 'as its parts'}")


def seeds(subject: Subject) -> Verdict:
    """Initial values follow from the seed and the parameter's name, whatever else is drawn."""
    for seed in (0, 1):
        model = subject.build(seed)
        for name, parameter in model.encoding.named_parameters():
            require(bool(parameter.isfinite().all()), f"nothing sets all values of {name}")
        with torch.random.fork_rng():
            torch.manual_seed(seed + 1)  # the global generator must not matter
            again = dict(subject.build(seed).named_parameters())
        for name, parameter in model.named_parameters():
            identical(parameter, again[name], f"{name} starts elsewhere the second time")
    return Verdict("pass", "two seeds, bit for bit")


# --- a callable beside one of posenc's encodings

EQUAL = 1e-3  # of float32 scores at 8T: angles in float32 are off by 1e-5; a wrong slope or base by 1e-1


def same(subject: Subject) -> Verdict:
    """Its scores are those of the encoding that it is compared with, up to 16T."""
    model, like = subject.fresh().eval(), subject.like
    assert like is not None
    if any(True for _ in like.parameters()):
        raise NotApplicableError(f"{like.name} has learned values")
    # bf16 has every whole number up to 256, 8T here: a bias that is rounded to it shows beyond
    own, pos, off = model.encoding, torch.arange(2 * subject.longest()), 0.0
    hooks = own.hooks & {"bias", "rotate"}
    theirs = {"bias" if hook == "distance_bias" else hook for hook in like.hooks}
    require(hooks == theirs, f"{like.name} acts on {', '.join(sorted(theirs))}")
    for layer in range(len(model.blocks)):
        a, b = (scores_of(one, pos, layer) for one in (own, like))  # (H, S, S)
        reason = f"its scores are not those of {like.name}"
        off = max(off, within(largest(a, b), EQUAL, reason))
    return Verdict("pass", bounded(off, EQUAL), f"as {like.name}")


@torch.no_grad()
def scores_of(encoding: Encoding, pos: Tensor, layer: int) -> Tensor:
    """Return what the encoding makes of scores, up to what the softmax takes away from each query."""
    if "rotate" in encoding.hooks:
        shape = (2, 1, encoding.shape.n_heads, len(pos), encoding.shape.head_dim)
        q, k = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        q, k = encoding.rotate(q, k, pos, pos, layer)
        return (q @ k.mT)[0].tril()  # (H, S, S)
    bias = encoding.bias(pos, pos, layer)  # (H, S, S)
    return (bias - bias.diagonal(dim1=1, dim2=2)[..., None]).tril()

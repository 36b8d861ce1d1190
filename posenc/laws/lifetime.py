"""Laws of a model's life: what it met before leaves no trace, and its weights are all that it is."""

from __future__ import annotations

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.laws.subject import Subject, has_positions, largest, logits, tokens
from posenc.laws.verdict import Verdict, require
from posenc.model.decoder import Decoder


def trace(subject: Subject) -> Verdict:
    """Training at T, evaluating long, bf16 and a model of another size in between change no number."""
    model, length, longest = subject.fresh(), subject.train_length, subject.longest()
    short, long = tokens(model, length), tokens(model, longest)
    far = logits(subject.fresh(), long)  # of a model that never met T
    model.train()
    model(short, model.positions(length, generator_for(0, "law"))).sum().backward()
    near = logits(model, short)
    _same(logits(model, long), far, f"{longest} tokens after training at {length}, and of a fresh model")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits(model, long)
    _same(logits(model, short), near, f"{length} tokens, before and after longer windows")
    _another(subject, longest)
    _same(logits(model, short), near, f"{length} tokens, before and after another model")
    _same(logits(model, long), far, f"{longest} tokens, before and after another model")
    _same(logits(subject.fresh(), short), near, f"{length} tokens, and of a fresh model")
    return Verdict("pass", f"bit for bit at {length} and {longest} tokens")


def weights(subject: Subject) -> Verdict:
    """Saved and loaded into a model that has already run with other values, at T and the longest window."""
    model, other = subject.fresh(), subject.fresh(1)
    texts = [tokens(model, n) for n in sorted({subject.train_length, subject.longest()})]
    wanted = [logits(model, ids) for ids in texts]
    for ids in texts:
        logits(other, ids)
    buffers = set(model.state_dict()) - {name for name, _ in model.named_parameters()}
    require(
        not buffers,
        f"saved buffers tie weights to their length: {', '.join(sorted(buffers))} (persistent=False keeps "
        "them out)",
    )
    _set_seed(other, model)
    other.load_state_dict(load(save({k: v.contiguous() for k, v in model.state_dict().items()})), strict=True)
    for ids, want in zip(texts, wanted, strict=True):
        _same(logits(other, ids), want, f"{ids.shape[1]} tokens, before and after loading")
    bound = [name for part in subject.fresh().encoding.modules() for name in _plain_tensors(part)]
    require(not bound, f"tensors that stay on the CPU: {', '.join(bound)} (register_buffer moves them along)")
    return Verdict("pass", f"bit for bit at {' and '.join(str(ids.shape[1]) for ids in texts)} tokens")


def _plain_tensors(part: nn.Module) -> list[str]:
    """Attributes that are tensors, and neither parameters nor buffers."""
    return [name for name, value in vars(part).items() if isinstance(value, Tensor)]


def _another(subject: Subject, longest: int) -> None:
    """A model for another T runs at a longer window, so that a table shared by the process is made anew."""
    try:
        other = subject.fresh(1, context_length=2 * subject.train_length)
    except UserError:  # settings that fit this T alone
        return
    for n in (subject.train_length, 2 * longest):
        if has_positions(other, n):
            logits(other, tokens(other, n, batch=1))


def _same(a: Tensor, b: Tensor, what: str) -> None:
    require(torch.equal(a, b), f"differ: logits at {what}", f"{largest(a, b):.1e}")


def _set_seed(to: Decoder, of: Decoder) -> None:
    """A run knows its seed from its settings; what is drawn but never trained follows from it."""
    for one, other in zip(to.modules(), of.modules(), strict=True):
        if hasattr(other, "seed"):
            one.seed = other.seed

"""Training and evaluation of every encoding in turns with a base: rates, memory, compilation, MFU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from gpu_checks.common import REPEATS, WARM_UP, decoder_of, seconds, tell, tokens_of
from posenc.cli.bench_cell import measured_rate
from posenc.core.seeds import generator_for
from posenc.model.decoder import Decoder, ModelShape, training_flops
from posenc.training.optimizer import Optimization, build_optimizer
from posenc.training.precision import autocast
from posenc.training.step import NextTokenLoss, gradients, update

LENGTH, TOKENS = 1024, 32768  # of training; tokens a batch, of an evaluation too
EXTENDED = (1, 8)  # windows of an evaluation in T
PLAN = Optimization(1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.0, 1.0)

Call = Callable[[], object]


def time_all(names: Sequence[str], base: str, shapes: Sequence[ModelShape], device: torch.device) -> None:
    """Lines of training and of each evaluation window, by model and encoding."""
    for shape in shapes:
        rate = measured_rate(device, "bf16", [(TOKENS, shape.d_model, 4 * shape.d_model)])["flops_per_second"]
        tell("machine", model=shape.name, products_tflops=rate / 1e12)
        for name in dict.fromkeys([base, *names]):
            # a base of its own each time: what an optimizer holds is memory that the next one would miss
            pair = [decoder_of(one, shape, LENGTH, device) for one in (base, name)]
            if None in pair:
                continue
            useful = training_flops(pair[1], LENGTH) * TOKENS
            _compare("training", shape, name, [_training(one, device) for one in pair], device, useful / rate)
            for times in EXTENDED:
                calls = [_evaluation(one, times * LENGTH, device) for one in pair]
                _compare(f"evaluation at {times}T", shape, name, calls, device, None)
            del pair
            torch.cuda.empty_cache()


def _training(decoder: Decoder, device: torch.device) -> Call:
    loss_of, optimizer = NextTokenLoss(decoder), build_optimizer(decoder, PLAN)
    tokens = tokens_of(TOKENS // LENGTH, LENGTH, device)

    def step() -> None:
        pos = decoder.train().positions(LENGTH, generator_for(0, "times"))
        gradients(loss_of, tokens, tokens, pos, precision="bf16", grad_clip=1.0)
        update(optimizer, 1e-4)

    return step


def _evaluation(decoder: Decoder, window: int, device: torch.device) -> Call:
    tokens = tokens_of(max(1, TOKENS // window), window, device)

    @torch.no_grad()
    def score() -> None:
        pos = decoder.eval().positions(window, generator_for(0, "times"))
        with autocast("bf16", device):
            decoder(tokens, pos, LENGTH // 4)

    return score


def _compare(
    what: str, shape: ModelShape, name: str, calls: list[Call], device: torch.device, ideal: float | None
) -> None:
    """`ideal`: seconds that the useful products of a step take at the machine's rate."""
    case = {"what": what, "model": shape.name, "encoding": name}
    try:
        seconds(calls[0], device)
        first = seconds(calls[1], device)
        torch.cuda.reset_peak_memory_stats(device)
        seconds(calls[1], device)
        peak = torch.cuda.max_memory_allocated(device)
        turns = [[seconds(call, device) for call in calls] for _ in range(WARM_UP + REPEATS)][WARM_UP:]
    except Exception as failure:  # out of memory, or a kernel that does not compile: the others go on
        torch.cuda.empty_cache()
        tell("times", not isinstance(failure, torch.OutOfMemoryError), **case, failure=repr(failure)[:500])
        return
    own = statistics.median(turn[1] for turn in turns)
    facts: dict[str, float] = {
        "ms": 1e3 * own,
        "tokens_per_s": TOKENS / own,
        "of_base": statistics.median(turn[0] / turn[1] for turn in turns),
        "first_s": first,
        "peak_gib": peak / 2**30,
    }
    if ideal is not None:
        facts["mfu"] = ideal / own
    tell("times", **case, **facts)

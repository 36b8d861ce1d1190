"""What a visit measures, and how large: on a GPU, and tiny on a CPU, where it only has to run."""

from __future__ import annotations

from dataclasses import dataclass, replace

# One encoding of each kind: none, rotation, fixed and learned biases by distance, gates, states, scores.
TIMED = ("nope", "rope", "alibi", "t5", "kerple_log", "fire", "fox", "cable", "path", "cope")
TIMED_LARGE = ("rope", "alibi", "t5", "fox")  # at the size of GPT-2
BASE = "rope"  # the others are timed in turns with it


@dataclass(frozen=True)
class Sizes:
    """Hold the sizes of everything that a visit measures."""

    # numbers
    lengths: tuple[int, ...]
    compiled_length: int
    # times, in posenc's own overrides
    step: tuple[str, ...]
    small: tuple[str, ...]  # the model
    large: tuple[str, ...]
    nano: tuple[str, ...]
    timed: tuple[str, ...]  # encodings
    timed_large: tuple[str, ...]
    compiled: bool  # whether steps are timed, checked and resumed compiled too
    multiples: tuple[int, ...]  # windows of an evaluation, in T
    repeats: int  # pairs of timings
    sample_seconds: float  # calls are repeated until they take as long
    # nanos
    nano_steps: int
    nano_processes: int
    # long keys
    keys: tuple[int, ...]
    last_queries: int
    # resume
    resume_overrides: tuple[str, ...]
    # processes that do what is not timed
    pool: int
    warm_ups: int  # of these, at once: they share the GPU's memory


ON_GPU = Sizes(
    lengths=(1000,),  # longer than a block of keys, and no multiple of one
    compiled_length=192,
    step=(
        "context_length=1024",
        "train.batch_tokens=32768",
        "train.precision=bf16",
        "eval.batch_tokens=32768",
    ),
    small=("model=small",),
    large=("model=base",),
    nano=("model=nano", "context_length=64", "train.batch_tokens=2048", "train.precision=fp32"),
    timed=TIMED,
    timed_large=TIMED_LARGE,
    compiled=True,
    multiples=(1, 8),
    repeats=7,
    sample_seconds=0.1,
    nano_steps=300,
    nano_processes=8,
    keys=(65_536, 66_560),  # 64 T and 65 T at T = 1024
    last_queries=1024,
    resume_overrides=("model=tiny", "context_length=128", "train.batch_tokens=4096", "train.tokens=1.6e6"),
    pool=8,
    warm_ups=5,
)

TINY_MODEL = ("model=nano", "model.d_model=32", "model.n_layers=2", "model.n_heads=2")
ON_CPU = Sizes(
    lengths=(40,),
    compiled_length=24,
    step=("context_length=32", "train.batch_tokens=64", "train.precision=fp32", "eval.batch_tokens=256"),
    small=TINY_MODEL,
    large=TINY_MODEL,
    nano=(*TINY_MODEL, "context_length=16", "train.batch_tokens=64", "train.precision=fp32"),
    timed=("rope", "t5"),
    timed_large=("rope",),
    compiled=False,
    multiples=(1, 8),
    repeats=3,
    sample_seconds=0.0,
    nano_steps=3,
    nano_processes=2,
    keys=(96, 97),
    last_queries=32,
    resume_overrides=(*TINY_MODEL, "context_length=16", "train.batch_tokens=128", "train.tokens=2e4"),
    pool=1,
    warm_ups=1,
)


def sizes_for(device: str, *, compiled: bool) -> Sizes:
    """Return the sizes for a device; `compiled` also compiles on a CPU, where that takes minutes."""
    if device != "cpu":
        return ON_GPU
    return replace(ON_CPU, compiled=compiled)

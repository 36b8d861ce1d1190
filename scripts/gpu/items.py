"""The items of a visit: what is measured, in which order, and about how long each takes on an H100."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu import long_keys, numbers, resume
from gpu.sizes import BASE, Sizes
from gpu.times import Case, warm_up

PARTS = ("numbers", "times", "peers", "evaluation", "nanos", "long_keys", "resume", "base")
COMPILED = "compiled"
PLAIN = "plain"
STEP_SECONDS = {COMPILED: 14.0, PLAIN: 6.0}  # to prepare and time a pair, with compiled code on the disk
# A block's code does not depend on the number of layers. Layers 0 and 1 get code of their own, and all
# others share one, so four make everything and leave memory to the other warm-ups.
FEW_LAYERS = "model.n_layers=4"
SHARE_OF_MEMORY = 0.8  # of all warm-ups together; every process holds half a GiB besides


@dataclass(frozen=True)
class PoolItem:
    """A call in one of several processes at once; nothing in it is timed."""

    key: str
    seconds: float  # estimated
    function: Callable[..., dict[str, object]]
    arguments: tuple[object, ...]


@dataclass(frozen=True)
class TimedItem:
    """A case that is timed in turns with a base; nothing else runs meanwhile."""

    key: str
    part: str
    seconds: float  # estimated
    case: Case
    base: Case
    warm_up: str = ""  # key of the item that compiles for it, together with others


@dataclass(frozen=True)
class NanosItem:
    """Small models that train at once; nothing else runs meanwhile."""

    key: str
    part: str
    seconds: float  # estimated
    with_mps: bool
    warm_up: str = ""


@dataclass(frozen=True)
class Visit:
    """What is to be measured, and where."""

    sizes: Sizes
    device: str
    encodings: Sequence[str]  # whose numbers are checked
    timed: Sequence[str]
    peers: Sequence[str]
    parts: Sequence[str]
    log: Path

    @property
    def forms(self) -> list[str]:
        """Return how a step is timed, the more important way first."""
        return [COMPILED, PLAIN] if self.sizes.compiled else [PLAIN]

    def case(self, model: str, encoding: str, work: str, form: str, multiple: int = 1) -> Case:
        """Return a case of posenc's own."""
        shape = {"small": self.sizes.small, "base": self.sizes.large}[model]
        # compiled steps are timed as posenc trains by itself on a GPU, plain ones without either
        is_compiled = str(form == COMPILED).lower()
        has_graph = "auto" if form == COMPILED else "false"
        how = (f"train.compile={is_compiled}", f"train.cuda_graph={has_graph}")
        choice = (f"encoding={encoding}", f"device={self.device}", *how)
        return Case((*shape, *self.sizes.step, *choice), work, multiple)


def timed_items(visit: Visit) -> list[TimedItem | NanosItem]:
    """Return the items that are timed, the most important ones first.

    Those that have the same base stand together where that is possible: the base is prepared anew for each
    change.
    """
    large = [name for name in visit.sizes.timed_large if name in visit.timed]
    items: list[TimedItem | NanosItem] = []
    for form in visit.forms:
        items += _steps(visit, "times", "small", visit.timed, form)
        items += _peers(visit, "training", form)
    for form in visit.forms:
        items += _steps(visit, "base", "base", large[:1], form)
    for multiple in visit.sizes.multiples:
        items += _evaluations(visit, multiple)
    items += [NanosItem("nanos/plain", "nanos", 45, False), NanosItem("nanos/mps", "nanos", 45, True)]
    for form in visit.forms:
        items += _steps(visit, "base", "base", large[1:], form)
    for form in visit.forms:
        items += _peers(visit, "forward", form)
    return [item for item in items if item.part in visit.parts]


def _steps(visit: Visit, part: str, model: str, encodings: Sequence[str], form: str) -> list[TimedItem]:
    """Return a training step of each encoding."""
    base = visit.case(model, BASE, "training", form)
    items: list[TimedItem] = []
    for name in encodings:
        case = visit.case(model, name, "training", form)
        warm_up_key = f"warm-up/{model}/{name}" if form == COMPILED else ""
        key = f"times/{model}/{name}/{form}"
        items.append(TimedItem(key, part, STEP_SECONDS[form], case, base, warm_up_key))
    return items


def _peers(visit: Visit, work: str, form: str) -> list[TimedItem]:
    """Return a step or a forward pass of each other package's model."""
    base = visit.case("small", BASE, work, form)
    items: list[TimedItem] = []
    for peer in visit.peers:
        case = replace(base, peer=peer)
        warm_up_key = f"warm-up/peers/{peer}" if form == COMPILED else ""
        key = f"peers/{peer}/{work}/{form}"
        items.append(TimedItem(key, "peers", STEP_SECONDS[form], case, base, warm_up_key))
    return items


def _evaluations(visit: Visit, multiple: int) -> list[TimedItem]:
    """Return an evaluation of each encoding at windows of `multiple` T."""
    base = visit.case("small", BASE, "evaluation", PLAIN, multiple)
    items: list[TimedItem] = []
    for name in visit.timed:
        case = visit.case("small", name, "evaluation", PLAIN, multiple)
        key = f"evaluation/{name}/{multiple}T"
        items.append(TimedItem(key, "evaluation", 6, case, base, f"warm-up/small/{name}"))
    return items


def warm_ups(items: Sequence[TimedItem | NanosItem], visit: Visit) -> list[PoolItem]:
    """Return the items that compile in several processes what the timed items then find on the disk."""
    if visit.device == "cpu":
        return []
    cases_by_key: dict[str, list[Case]] = {}
    for item in items:
        if isinstance(item, TimedItem) and item.warm_up:
            case = item.case
            if not case.peer:  # whose models are compiled as a whole
                case = replace(case, overrides=(*case.overrides, FEW_LAYERS))
            cases_by_key.setdefault(item.warm_up, []).append(case)
    share = SHARE_OF_MEMORY / visit.sizes.warm_ups
    return [PoolItem(key, 40, warm_up, (cases, share)) for key, cases in cases_by_key.items()]


def check_items(visit: Visit) -> list[PoolItem]:
    """Return the checks, which are not timed, the longest ones first."""
    sizes = visit.sizes
    device = visit.device
    items: list[PoolItem] = []
    if "resume" in visit.parts:
        for form in visit.forms:
            resumed = (sizes.resume_overrides, device, form == COMPILED)
            items.append(PoolItem(f"resume/{form}", 60, resume.stop_and_continue, resumed))
    if "numbers" in visit.parts:
        for name in visit.timed if sizes.compiled else ():
            compiled_case = (name, sizes.compiled_length, device)
            key = f"numbers-compiled/{name}"
            items.append(PoolItem(key, 40, numbers.check_compiled, compiled_case))
        for name in visit.encodings:
            encoding_cases = (name, sizes.lengths, device)
            items.append(PoolItem(f"numbers/{name}", 20, numbers.check_encoding, encoding_cases))
    if "long_keys" in visit.parts:
        for precision in long_keys.DTYPES:
            for keys in sizes.keys:
                key_case = (keys, sizes.last_queries, precision, device)
                items.append(PoolItem(f"long_keys/{precision}/{keys}", 15, long_keys.compare, key_case))
    return items

"""Tables of the study's pages: one function for each, from the records in docs/records/.

A page calls a function in a mark (see pages.py). Folders are named without `docs/records/`. Every function
returns Markdown.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markdown_table import MarkdownTable
from posenc_output import (
    Json,
    cell_at,
    compare,
    last_cell,
    multiple_of,
    stored_runs,
    verdict_word,
)
from scipy.stats import spearmanr

SEEDS_APART = 0.2  # two seeds of an encoding differ if the shares that they find at 8T are so far apart


def costs(folders: Sequence[str]) -> str:
    """Return a row for each file of records: how many runs, and how long they took."""
    table = MarkdownTable(
        ["records", "runs", "encodings", "seeds", "training, minutes a run", "measuring", "in all, hours"],
        left=[0, 3],
    )
    for folder in folders:
        runs = [run for run in stored_runs(folder) if run["results"] is not None]
        facts = [run["results"]["run"] for run in runs]
        training = [fact["wall_seconds"] / 60 for fact in facts]
        measuring = [_minutes_measured(run) for run in runs]
        seeds = sorted({fact["seed"] for fact in facts})
        encodings = {str(run["config"]["encoding"]) for run in runs}
        hours = (sum(training) + sum(measuring)) / 60
        table.add(
            folder,
            str(len(runs)),
            str(len(encodings)),
            ", ".join(map(str, seeds)),
            _median_and_range(training),
            _median_and_range(measuring),
            f"{hours:.1f}",
        )
    return table.text()


def _minutes_measured(run: Json) -> float:
    seconds = [record.get("seconds") or 0 for record in run["results"]["records"]]
    return float(sum(seconds) / 60)


def _median_and_range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def losses_and_changes(folders: Sequence[str], columns: Sequence[str], where: Sequence[str] = ()) -> str:
    """Return a row for each encoding: the loss at T, and the change and its verdict beyond T.

    A column is a protocol and a length, `sliding@8x`. Runs of different settings may share the table.
    """
    protocols = [column.partition("@")[0] for column in columns]
    lengths = [column.partition("@")[2] for column in columns]
    rows_of = {protocol: _rows_by_name(folders, protocol, where) for protocol in protocols}
    heads = [f"{protocol} {length}" for protocol, length in zip(protocols, lengths, strict=True)]
    table = MarkdownTable(["", *heads])
    for name in rows_of[protocols[0]]:
        cells = [
            _loss_or_change(rows_of[protocol].get(name), multiple_of(length))
            for protocol, length in zip(protocols, lengths, strict=True)
        ]
        table.add(name, *cells)
    return table.text()


def _rows_by_name(folders: Sequence[str], protocol: str, where: Sequence[str]) -> dict[str, Json]:
    comparison = compare(folders, "--protocol", protocol, "--allow-mixed", where=where)
    return {_full_name(row): row for row in comparison["rows"]}


def _full_name(row: Json) -> str:
    """Return the name of a row with the settings that tell it from others of a mixed table."""
    settings = ", ".join(f"{key} {value}" for key, value in row["mixed"].items())
    return f"{row['label']} [{settings}]" if settings else row["label"]


def _loss_or_change(row: Json | None, multiple: float) -> str:
    """Return the loss at T or the change elsewhere, with its spread, as `posenc compare` prints them."""
    cell = cell_at(row, multiple) if row else None
    if cell is None or cell["mean"] is None:
        return "-"
    if multiple == 1:
        return f"{cell['mean']:.3f}{_plus_minus(cell['spread'])}"
    half_width = cell["change_spread"]
    if half_width is None and cell["change_ci95"] is not None:  # one seed: the interval is over documents
        low, high = cell["change_ci95"]
        half_width = (high - low) / 2
    change = f"{cell['change']:+z.3f}{_plus_minus(half_width)}"
    return f"{change} {verdict_word(cell)}" if cell["verdict"] else change


def _plus_minus(half_width: float | None) -> str:
    return "" if half_width is None else f"±{half_width:z.3f}"


def by_setting(folder: str, key: str, values: Sequence[str]) -> str:
    """Return encodings by the values of a setting: the loss at T, the best in bold, and the change at 8T."""
    table = MarkdownTable([key, *values])
    comparisons = [compare([folder], where=[f"{key}={value}"]) for value in values]
    for rows in zip(*(comparison["rows"] for comparison in comparisons), strict=True):  # one encoding each
        (name,) = {row["label"] for row in rows}
        losses = [cell_at(row, 1)["mean"] for row in rows]
        cells = []
        for row, loss in zip(rows, losses, strict=True):
            text = f"{loss:.3f}"
            if loss == min(losses):
                text = f"**{text}**"
            far = cell_at(row, 8)
            if far is not None:
                text += f" ({far['change']:+.3f})"
            cells.append(text)
        table.add(name, *cells)
    return table.text()


def two_rows_by_seed(folder: str, first: str, second: str, length: str) -> str:
    """Return two encodings at one length, seed by seed and over all seeds."""
    table = MarkdownTable(["seed", first, second, "difference, nats", f"{second} is"], left=[0, 4])
    both = f"{first},{second}"
    options = ["--rows", both, "--columns", length, "--baseline", first]
    for seed in [*_seeds([folder], [f"encoding={both}"]), None]:
        where = [f"encoding={both}"]
        if seed is not None:
            where.append(f"seed={seed}")
        rows = compare([folder], *options, where=where)["rows"]
        cells = [last_cell(row) for row in rows]
        losses = [f"{cell['mean']:.3f} ({cell['change']:+.3f}, {verdict_word(cell)})" for cell in cells]
        versus = cells[1]["versus_baseline"]
        name = "all" if seed is None else str(seed)
        table.add(name, *losses, f"{versus['difference']:+.3f}", versus["word"])
    return table.text()


def _seeds(folders: Sequence[str], where: Sequence[str] = ()) -> list[int]:
    """Return the seeds of the runs that fit."""
    return sorted(compare(folders, where=where)["header"]["seeds"])


def changes_by_seed(folder: str, length: str, where: Sequence[str] = ()) -> str:
    """Return encodings with several seeds: the change at a length and its verdict, each seed by itself.

    Rows go from the smallest mean change to the largest.
    """
    seeds = _seeds([folder], where)
    cells_by_name: dict[str, dict[int, Json]] = {}
    for seed in seeds:
        for row in compare([folder], where=[*where, f"seed={seed}"])["rows"]:
            cell = cell_at(row, multiple_of(length))
            if cell is not None and cell["change"] is not None:
                cells_by_name.setdefault(row["label"], {})[seed] = cell
    several = {name: cells for name, cells in cells_by_name.items() if len(cells) > 1}
    mean_change = {
        name: statistics.fmean(cell["change"] for cell in cells.values()) for name, cells in several.items()
    }
    table = MarkdownTable([f"at {length}", *(f"seed {seed}" for seed in seeds)])
    agreeing = 0
    for name in sorted(several, key=mean_change.__getitem__):
        cells = several[name]
        verdicts = {verdict_word(cell) for cell in cells.values()}
        if len(verdicts) == 1:
            agreeing += 1
        texts = {seed: f"{cell['change']:+.3f}, {verdict_word(cell)}" for seed, cell in cells.items()}
        table.add(name, *(texts.get(seed, "-") for seed in seeds))
    table.sentence = f"{agreeing} of {len(several)} encodings have the same word in every seed."
    return table.text()


@dataclass(frozen=True)
class SeedRecall:
    """How one model recalls planted values, and what the far text costs it."""

    within: float  # share found within T
    at_last: float  # share found in the longest window
    learned: bool  # whether it passes the gate within T
    change: float  # of the loss in the longest window, nats

    def text(self) -> str:
        return f"{100 * self.within:.0f}, {100 * self.at_last:.0f}; {self.change:+.3f}"


def recall_by_seed(folder: str) -> str:
    """Return the encodings whose seeds differ in what they find: recall within T and at 8T, change at 8T.

    Seeds differ where some pass the gate and some do not, or where what they find at 8T is SEEDS_APART apart.
    """
    seeds = _seeds([folder])
    recalls_by_name: dict[str, dict[int, SeedRecall]] = {}
    for seed in seeds:
        for row in compare([folder], where=[f"seed={seed}"])["rows"]:
            recall = seed_recall(row)
            if recall is not None:
                recalls_by_name.setdefault(row["label"], {})[seed] = recall
    several = {name: recalls for name, recalls in recalls_by_name.items() if len(recalls) > 1}
    mean_at_last = {
        name: statistics.fmean(recall.at_last for recall in recalls.values())
        for name, recalls in several.items()
    }
    table = MarkdownTable(["% found at T, at 8T; change at 8T", *(f"seed {seed}" for seed in seeds)])
    for name in sorted(several, key=mean_at_last.__getitem__, reverse=True):
        if _seeds_differ(list(several[name].values())):
            texts = {seed: recall.text() for seed, recall in several[name].items()}
            table.add(name, *(texts.get(seed, "-") for seed in seeds))
    learned = Counter(_how_many_learned(list(recalls.values())) for recalls in several.values())
    table.sentence = (
        f"Of {len(several)} encodings with several seeds, every seed of {learned['all']} learned the task, "
        f"and a part of the seeds of {learned['some']}."
    )
    return table.text()


def seed_recall(row: Json) -> SeedRecall | None:
    recall = row["recall"]
    if recall is None or recall["within"] is None or recall["beyond"][-1] is None:
        return None
    return SeedRecall(
        within=recall["within"]["accuracy"],
        at_last=recall["beyond"][-1]["accuracy"],
        learned=bool(recall["learned"]),
        change=last_cell(row)["change"] or 0.0,
    )


def _how_many_learned(recalls: Sequence[SeedRecall]) -> str:
    if all(recall.learned for recall in recalls):
        return "all"
    return "some" if any(recall.learned for recall in recalls) else "none"


def _seeds_differ(recalls: Sequence[SeedRecall]) -> bool:
    how_many = _how_many_learned(recalls)
    if how_many == "all":
        shares = [recall.at_last for recall in recalls]
        return max(shares) - min(shares) >= SEEDS_APART
    return how_many == "some"


def room(folders: Sequence[str]) -> str:
    """Return encodings that were trained at T and at 8T, on the same targets: what the far text is worth.

    That is what the model trained at 8T gains from it. *Recovered* says how much of it the model trained at T
    gains. The last column compares the two models where both are given T of text.
    """
    rows = [row for row in compare(folders)["rows"] if row["recovered"]]
    seeds = [f"{row['recovered']['seeds']} and {row['recovered']['reference_seeds']}" for row in rows]
    all_alike = len(set(seeds)) == 1
    heads = ["far text is worth", "recovered", "trained at T: loss with T", "with 8T"]
    heads += ["trained at 8T: loss with T", "with 8T", "trained at 8T minus at T, both with T"]
    table = MarkdownTable(["nats", *heads] if all_alike else ["nats", *heads, "seeds"])
    for row, how_many in sorted(zip(rows, seeds, strict=True), key=_worth_of, reverse=True):
        recovered = row["recovered"]
        low, high = recovered["difference_ci95"]
        cells = [
            _full_name(row),
            _with_half_width(recovered["worth"], recovered["worth_ci95"]),
            _recovered_share(recovered),
            f"{loss_at_train_length(row):.3f}",
            f"{cell_at(row, recovered['multiple'])['mean']:.3f}",
            f"{recovered['reference'] + recovered['worth']:.3f}",
            f"{recovered['reference']:.3f}",
            _with_half_width(-recovered["difference"], (-high, -low)),
        ]
        if not all_alike:
            cells.append(how_many)
        table.add(*cells)
    return table.text()


def _worth_of(row_and_seeds: tuple[Json, str]) -> float:
    row, _ = row_and_seeds
    worth: float = row["recovered"]["worth"]
    return worth


def _with_half_width(value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{value:+.3f} ± {(high - low) / 2:.3f}"


def _recovered_share(recovered: Json) -> str:
    """Return `12% ±3`, or why there is no such share; a model that loses more than the worth has `<-100%`."""
    share, interval = recovered["share"], recovered["ci95"]
    if share is None:
        return str(recovered["note"])
    if share < -1:
        return "<-100%"
    text = f"{100 * share:z.0f}%"
    if interval is not None:
        low, high = interval
        text += f" ±{50 * (high - low):.0f}"
    return text


def harm_and_use(folders: Sequence[str], encodings: Sequence[str], where: Sequence[str] = ()) -> str:
    """Return what far text does to each encoding at the longest window, and how much of it is found there.

    `where` holds conditions such as `seed=0,1,2`.
    """
    rows_by_name = {row["label"]: row for row in compare(folders, where=where)["rows"]}
    heads = ["encoding", "loss at T", "harm: change at 8T", "use: seeds that learned", "found at 8T"]
    table = MarkdownTable(heads)
    for name in encodings:
        row = rows_by_name[name]
        table.add(
            f"`{name}`",
            f"{loss_at_train_length(row):.3f}",
            change_and_verdict(last_cell(row)),
            seeds_that_learned(row),
            found_and_interval(row),
        )
    table.sentence = "Loss in nats/byte. Brackets are 95% intervals."
    return table.text()


def change_and_verdict(cell: Json) -> str:
    """Return `+0.011 [+0.006, +0.016] unclear`: the change in nats, the interval that the verdict goes by.

    The records have that interval in bits per byte. It is turned into nats per byte, so it fits the change
    only where tokens are bytes.
    """
    low, high = (math.log(2) * bits for bits in cell["verdict_ci95"])
    return f"{cell['change']:+z.3f} [{low:+z.3f}, {high:+z.3f}] {verdict_word(cell)}"


def seeds_that_learned(row: Json) -> str:
    learning = row["recall"]["learning"]
    return f"{learning['learned']} of {learning['seeds']}"


def found_and_interval(row: Json) -> str:
    """Return `90% [79, 99]`: the share that is found in the longest window."""
    farthest = row["recall"]["beyond"][-1]
    low, high = (100 * share for share in farthest["ci95"])
    return f"{100 * farthest['accuracy']:.0f}% [{low:.0f}, {high:.0f}]"


def verdicts_counted(folder: str) -> str:
    """Return the encodings by their verdict at the longest window, those that harm least first."""
    names_by_verdict: dict[str, list[str]] = {}
    for row in sorted(compare([folder])["rows"], key=lambda row: last_cell(row)["change"]):
        names_by_verdict.setdefault(verdict_word(last_cell(row)), []).append(f"`{row['label']}`")
    table = MarkdownTable(["verdict at 8T", "encodings"], left=[0, 1])
    for verdict, names in names_by_verdict.items():
        table.add(verdict, f"{len(names)}: {', '.join(names)}")
    return table.text()


def recipe(folder: str) -> str:
    """Return how the models of a folder were trained and measured, from the settings of its first run."""
    run = stored_runs(folder)[0]
    config = run["config"]
    results = run["results"]
    model = config["model"]
    train = config["train"]
    plant = config["data"]["plant"]
    targets = next(record for record in results["records"] if record["protocol"] == "fixed-target")
    table = MarkdownTable(["", folder], left=[0, 1])
    table.add(
        "model",
        f"{results['run']['parameters']['total'] / 1e6:.1f}M parameters, {model['n_layers']} layers, "
        f"{model['n_heads']} heads, width {model['d_model']}",
    )
    table.add("convolution", f"over {model['short_conv']} tokens, before each attention (`model.short_conv`)")
    table.add("tokens", f"bytes; {results['run']['tokens'] / 1e6:.1f}M of them in training")
    table.add(
        "training",
        f"`{config['optim']['name']}`, learning rate {train['lr']:g} for all, falling to "
        f"{config['optim']['final_lr_fraction']:g}, {results['run']['steps']} updates of "
        f"{train['batch_tokens']:,} tokens, {train['precision']}",
    )
    table.add(
        "planted pairs",
        f"{plant['pairs']} in a window, each twice, in {100 * plant['share']:.0f}% of the training windows; "
        f"{plant['alphabet']} keys and {plant['alphabet']} values; a value that can be known has weight "
        f"{plant['weight']:g} in the training loss",
    )
    table.add(
        "text",
        f"`{config['data']['name']}`; measured on {targets['targets']:,} bytes of {targets['documents']} "
        "documents that training did not see",
    )
    return table.text()


def cost_of_plants(planted_folder: str, plain_folder: str, seed: int) -> str:
    """Return the losses at T and the changes at 8T of one seed, with planted pairs and without."""
    where = [f"seed={seed}"]
    planted = {row["label"]: row for row in compare([planted_folder], where=where)["rows"]}
    plain = {row["label"]: row for row in compare([plain_folder], where=[*where, "data.plant=null"])["rows"]}
    heads = ["encoding", "at T, with plants", "at T, without", "change at 8T, with plants", "without"]
    table = MarkdownTable(heads, left=[0])
    for name in sorted(plain, key=lambda name: last_cell(plain[name])["change"]):
        both_rows = (planted[name], plain[name])
        losses = [f"{loss_at_train_length(row):.3f}" for row in both_rows]
        changes = [f"{last_cell(row)['change']:+.3f}" for row in both_rows]
        table.add(f"`{name}`", *losses, *changes)
    return table.text()


def loss_at_train_length(row: Json) -> float:
    cell = cell_at(row, 1)
    assert cell is not None
    loss: float = cell["mean"]
    return loss


def harm_by_size(folders: Sequence[str]) -> str:
    """Return the encodings that all folders have: the change at 8T, a column for each size of model.

    Rows go from the least harm to the most in the first folder.
    """
    return _by_size(folders, lambda row: change_and_verdict(last_cell(row)))


def use_by_size(folders: Sequence[str]) -> str:
    """Return the encodings that all folders have: seeds that learned and what is found at 8T, by size.

    Where no seed learned there is no share. Rows are in the order of `harm_by_size`.
    """
    return _by_size(folders, _use)


def _use(row: Json) -> str:
    learned = seeds_that_learned(row)
    return f"{learned}: {found_and_interval(row)}" if row["recall"]["learned"] else learned


def _by_size(folders: Sequence[str], text_of: Callable[[Json], str]) -> str:
    comparisons = [compare([folder]) for folder in folders]
    rows_by_name = [{row["label"]: row for row in comparison["rows"]} for comparison in comparisons]
    first = rows_by_name[0]
    longest = last_cell(comparisons[0]["rows"][0])["multiple"]
    heads = [_size_and_length(comparison["header"]) for comparison in comparisons]
    table = MarkdownTable([f"at {longest:g}T", *heads])
    shared = [name for name in first if all(name in rows for rows in rows_by_name)]
    for name in sorted(shared, key=lambda name: last_cell(first[name])["change"]):
        table.add(f"`{name}`", *(text_of(rows[name]) for rows in rows_by_name))
    return table.text()


def _size_and_length(header: Json) -> str:
    fewest, _ = header["parameters"]
    return f"{fewest / 1e6:.2g}M, T = {header['context_length']}"


def extensions_beside(folder: str, other_folder: str, length: str) -> str:
    """Return what each extension does to the loss at T and at a length, in a folder and in another one.

    Rows go from the smallest change in the first folder to the largest; the model as trained is one of them.
    """
    rows = {row["extend"] or "as trained": row for row in compare([folder])["rows"]}
    other_rows = {row["extend"] or "as trained": row for row in compare([other_folder])["rows"]}
    multiple = multiple_of(length)
    changes = {}
    losses_at_t = {}
    for name, row in rows.items():
        cell = cell_at(row, multiple)
        if cell is not None and cell["change"] is not None:
            changes[name] = cell["change"]
            at_t = cell_at(row, 1)
            assert at_t is not None
            losses_at_t[name] = at_t["mean"]
    heads = ["extension", "loss at 1x (T)", f"change at {length}", f"of a small RoPE at {length}"]
    table = MarkdownTable(heads)
    in_both = {}
    for name in sorted(changes, key=lambda name: changes[name]):
        other_cell = cell_at(other_rows[name], multiple) if name in other_rows else None
        other_text = "-"
        if other_cell is not None:
            in_both[name] = other_cell["change"]
            other_text = f"{other_cell['change']:+.3f}"
        table.add(name, f"{losses_at_t[name]:.3f}", f"{changes[name]:+.3f}", other_text)
    correlation = spearmanr([changes[name] for name in in_both], list(in_both.values())).statistic
    table.sentence = (
        "Changes are from the loss of the model as trained, at T. Rank correlation of the two columns of "
        f"changes: {correlation:+.2f} ({len(in_both)} rows)."
    )
    return table.text()


def memory_beside_recall(folder: str) -> str:
    """Return what far text does to each encoding at 8T: harm, recall, memory, the right token.

    Rows go from the smallest change to the largest. All have one seed.
    """
    heads = ["encoding", "loss at T", "harm: change at 8T", "found at 8T, %"]
    heads += ["memory at T", "memory at 8T", "right token at 8T", "net"]
    table = MarkdownTable(heads)
    rows = [row for row in compare([folder])["rows"] if row["memory"] is not None]
    for row in sorted(rows, key=lambda row: last_cell(row)["change"]):
        far_text = _shorter_window(row, 8, 1)
        gained = far_text["gained"]
        lost = far_text["lost"]
        table.add(
            f"`{row['label']}`",
            f"{cell_at(row, 1)['mean']:.3f}",
            _loss_or_change(row, 8),
            _found_at_last(row["recall"]),
            _memory_text(_shorter_window(row, 1, 0.5)),
            _memory_text(far_text),
            f"+{gained:.3f} -{lost:.3f}",
            f"{gained - lost:+.3f}",
        )
    table.sentence = (
        "Loss in nats/byte; ± is half the 95% interval over documents; (found): did not learn to recall."
    )
    return table.text()


def _found_at_last(recall: Json) -> str:
    """Return the per cent found in the longest window, in brackets for a row that did not learn."""
    text = f"{100 * recall['beyond'][-1]['accuracy']:.0f}"
    return text if recall["learned"] else f"({text})"


def _shorter_window(row: Json, multiple: float, shorter_multiple: float) -> Json:
    """Return the comparison of a row's windows with shorter ones, both given as multiples of T."""
    (cell,) = (cell for cell in row["memory"]["cells"] if cell["multiple"] == multiple)
    (shorter,) = (shorter for shorter in cell["shorter"] if shorter["multiple"] == shorter_multiple)
    window: Json = shorter
    return window


def _memory_text(shorter: Json) -> str:
    low, high = shorter["ci95"]
    return f"{shorter['variation']:.3f}{_plus_minus((high - low) / 2)}"


def verdicts_that_differ(folders: Sequence[str], length: str) -> str:
    """Return the encodings of two folders whose verdict at a length is not the same."""
    cells_by_name = []
    for folder in folders:
        cells = {row["label"]: cell_at(row, multiple_of(length)) for row in compare([folder])["rows"]}
        cells_by_name.append({name: cell for name, cell in cells.items() if cell is not None})
    first, second = cells_by_name
    table = MarkdownTable([f"at {length}", *(f"`docs/records/{folder}`" for folder in folders)])
    shared = [name for name in first if name in second]
    for name in shared:
        if verdict_word(first[name]) != verdict_word(second[name]):
            pair = (first[name], second[name])
            table.add(name, *(f"{cell['change']:+.3f} {verdict_word(cell)}" for cell in pair))
    agreeing = len(shared) - len(table.rows)
    table.sentence = f"{agreeing} of {len(shared)} encodings have the same word in both."
    return table.text()

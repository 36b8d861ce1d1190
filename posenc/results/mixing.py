"""What must be the same for numbers to stand in one ranking, and the refusal where it is not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from posenc.core.errors import UserError, visible
from posenc.results.load import run_names
from posenc.results.selection import Selected
from posenc.results.settings import as_text, differing, flatten

UNKNOWN = "unknown"


def mixed_values(selected: Sequence[Selected]) -> list[dict[str, str]]:
    """For each run the keys that differ anywhere among them, with that run's value as text."""
    rows = [_comparable(one) for one in selected]
    hashes = _differing_targets(selected)
    models = [flatten(dict((one.run.facts or {}).get("model", {}))) for one in selected]
    unlike = differing(models)
    keys = ["name"] if "name" in unlike else unlike
    for one, row, model in zip(selected, rows, models, strict=True):
        row["model"] = " ".join(model.get(k, UNKNOWN) if k == "name" else f"{k}={model.get(k)}" for k in keys)
        row["targets"] = hashes.get(id(one), "")
    keys = differing(rows)
    if any(key in keys for key in ("evaluated on", "split", "stride", "tokenizer", "context length")):
        keys = [key for key in keys if key != "targets"]  # then the targets differ anyway: name the cause
    return [{key: row[key] for key in keys} for row in rows]


def refuse_mixed(selected: Sequence[Selected], mixed: Sequence[dict[str, str]]) -> None:
    """Raise UserError that names every differing key with its values and their runs, if there is one."""
    if not mixed or not mixed[0]:
        return
    lines, every = [], [one.run for one in selected]
    for key in mixed[0]:
        runs = defaultdict(list)
        for one, values in zip(selected, mixed, strict=True):
            runs[values[key]].append(one.run)
        shown = "; ".join(
            f"{visible(value)} ({visible(run_names(of, among=every))})" for value, of in runs.items()
        )
        lines.append(f"  {key}: {shown}")
    problem = "these runs do not belong in one ranking, they differ in\n" + "\n".join(lines)
    hint = "name the runs to compare, or add --allow-mixed to see them side by side, labelled"
    if list(mixed[0]) == ["targets"]:
        keys = ("eval.lengths", "eval.max_targets", "eval.target_fraction")
        said = [{key: flatten(dict(one.run.config or {})).get(key, "") for key in keys} for one in selected]
        unlike = differing(said) or ["the longest of eval.lengths"]
        hint = f"the targets depend on {', '.join(unlike)}: posenc eval run=DIR with the same again\n" + hint
    raise UserError("compare", None, problem, hint=hint)


def _comparable(one: Selected) -> dict[str, str]:
    facts = one.run.facts or {}
    record = one.records[0]
    corpus, tokenizer = facts.get("corpus", {}), facts.get("tokenizer", UNKNOWN)
    if isinstance(tokenizer, dict):
        tokenizer = " ".join(as_text(v) if k == "name" else f"{k}={as_text(v)}" for k, v in tokenizer.items())
    return {
        "corpus": f"{corpus.get('name', UNKNOWN)} {str(corpus.get('fingerprint', UNKNOWN))[:12]}",
        "tokenizer": as_text(tokenizer),
        "context length": as_text(facts.get("context_length", UNKNOWN)),
        "tokens trained": as_text(tokens_trained(one)),
        "evaluated on": f"{record['corpus']} {record['fingerprint'][:12]}",
        "split": record["split"],
        "stride": as_text(record["stride"]),
    }


def tokens_trained(one: Selected) -> int | str:
    """Tokens seen by the checkpoint that was measured: a part of the run's when it was an earlier one."""
    facts, step = one.run.facts or {}, one.records[0]["checkpoint_step"]
    tokens, steps = facts.get("tokens"), facts.get("steps")
    if not isinstance(tokens, int):
        return UNKNOWN
    return tokens * step // steps if isinstance(steps, int) and 0 < step < steps else tokens


def _differing_targets(selected: Sequence[Selected]) -> dict[int, str]:
    """The hash of each run's targets in the first column where they are not all the same, by id."""
    columns: dict[float, dict[int, str]] = defaultdict(dict)
    for one in selected:
        for cells in one.cells.values():
            for multiple, record in cells.items():
                column = 0.0 if "curve" in record else multiple  # curves share their columns, the bins
                columns[column].setdefault(id(one), record["targets_hash"])
    for _, hashes in sorted(columns.items()):
        if len(set(hashes.values())) > 1:
            return hashes
    return {}

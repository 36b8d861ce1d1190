"""Check what posenc's words and intervals are worth: power on the reference study, and truth by simulation.

    python scripts/checks/intervals.py [EXPERIMENTS] [--only NAME ...]

Prints Markdown tables; 100 experiments take a few minutes on one core. *Welch* compares each row with the
best one by variances of its own; *ours* is what posenc.results.statistics does. A simulated row is one of the
study: its losses by document are drawn anew with replacement, and its seeds are normal with the study's
standard deviation. In the case `equal` all rows are as good as the best one; in `edge` every second row is
worse by just the margin. The parts are in simulations/, one file for each thing that posenc says.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from simulations import changes, documents, losses, memory, recall, reference_study, rules, verdicts, worth

SIMULATIONS: dict[str, Callable[[int], None]] = {
    "study": reference_study.check_study,
    "documents": documents.check_documents,
    "losses": losses.check_losses,
    "recall": recall.check_recall,
    "recall-marks": recall.check_recall_marks,
    "recall-hard": recall.check_hard_recall,
    "verdicts": verdicts.check_verdicts,
    "changes": changes.check_changes,
    "worth": worth.check_worth,
    "memory": memory.check_memory,
    "rules": rules.check_rules,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("experiments", nargs="?", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=SIMULATIONS, default=list(SIMULATIONS))
    arguments = parser.parse_args()
    for name in arguments.only:
        SIMULATIONS[name](arguments.experiments)


if __name__ == "__main__":
    main()

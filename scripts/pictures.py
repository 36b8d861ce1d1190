"""The pictures of the documentation, docs/pictures/*.png: `python scripts/pictures.py`.

Encodings without learned parameters as they are; those with, after a training of a minute on a CPU, since
their initial values say little.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
FIXED = ("rope", "alibi", "sinusoidal")
LEARNED = ("t5", "kerple_log", "fire")
TRAINING = (
    "train.tokens=1e6",
    "train.precision=fp32",
    "device=cpu",
    "eval.lengths=[1x]",
    "eval.max_targets=100",
)


def posenc(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "posenc", *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in FIXED:
        posenc("show", f"encoding={name}", "--out", str(FOLDER / f"{name}.png"))
    for name in LEARNED:
        with tempfile.TemporaryDirectory() as runs:
            posenc("train", f"encoding={name}", f"runs_dir={runs}", *TRAINING)
            (run,) = (path for path in (Path(runs) / "default").iterdir() if path.is_dir())
            posenc("show", f"run={run}", "--out", str(FOLDER / f"{name}.png"))
    for path in sorted(FOLDER.glob("*.png")):
        print(f"{path.name} {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

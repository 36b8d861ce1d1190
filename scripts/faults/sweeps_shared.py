"""Two evaluations of the same runs at once; jobs that print letters which the sweep's own streams lack."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults.case import Case, Seen
from faults.commands import TINY, digests, finish, posenc, start
from faults.sweep_place import Sweeps

TEXT = "長さ外挿 – позиция – ω"
LINES = 4000  # of it: more than a pipe holds, so a reader that gave up would hold the job up for ever
PLUGIN = f"""
import os

from posenc.encodings.base import Encoding


class Talks(Encoding):
    name, paper, formula, acts_on, past_training = "talks", "none", "none", "nothing", "none"
    said = False

    def embed(self, x, pos, layer):
        if not Talks.said and x.requires_grad:
            Talks.said = True
            os.write(1, b"\\xff not UTF-8\\n")
            for number, stream in ((1, "stdout"), (2, "stderr")):
                for i in range({LINES}):
                    os.write(number, f"{{stream}} {{i}} {TEXT}\\n".encode())
            print("printed {TEXT}", flush=True)
        return x
"""


def cases(sweeps: Sweeps, quick: bool) -> Iterator[Case]:
    """In the folder of the other sweeps."""
    codings = ("latin-1",) if quick else ("latin-1", "ascii")
    yield Case(
        "two identical evaluations of two runs at once",
        "both exit 0, one table, each cell kept once",
        lambda: _two_evaluations(sweeps),
    )
    yield Case(
        f"letters beyond latin-1 from jobs, joblib, PYTHONIOENCODING={'/'.join(codings)}",
        "every job finished, exit 0, what was printed comes through",
        lambda: _letters(sweeps, codings),
    )


def _two_evaluations(sweeps: Sweeps) -> Seen:
    trained = sweeps.run("encoding=rope", "seed=0,1", runs="measured")
    runs = sorted(path.parent for path in (sweeps.place / "measured").glob("default/*/status.json"))
    before = digests(sweeps.place / "measured", "**/*.safetensors")
    asked = ",".join(str(run.relative_to(sweeps.place)) for run in runs)
    words = ["eval", "-m", f"run={asked}", "eval.lengths=[1x,2x,4x,8x]", "eval.max_targets=300,350"]
    both = [start(sweeps.place, *words, env=sweeps.env) for _ in range(2)]
    ends = [finish(process, 1200) for process in both]
    problems = [f"exit code {end.code}: {end.err[-900:]}" for end in (trained, *ends) if end.code]
    if ends[0].out != ends[1].out or "fixed-target: nats per token" not in ends[0].out:
        problems.append(f"the tables differ:\n{ends[0].out[-900:]}\n{ends[1].out[-900:]}")
    alone = posenc(sweeps.place, *words, env=sweeps.env)
    if alone.out != ends[0].out or alone.code:
        problems.append(f"a third finds other numbers: {alone.out[-900:]}{alone.err[-900:]}")
    cells = []
    for run in runs:
        records = json.loads((run / "results.json").read_text())["records"]
        cells.append(len(records))
        kinds = {(r["protocol"], r["window"], r["targets_hash"]) for r in records}
        if len(kinds) != len(records) or len(records) != len(list((run / "records").glob("*.json"))):
            problems.append(f"{run.name}: {len(records)} records of {len(kinds)} cells")
        problems += [f"left behind: {path.name}" for path in run.rglob("*.tmp")]
    if len(set(cells)) != 1 or digests(sweeps.place / "measured", "**/*.safetensors") != before:
        problems.append(f"cells {cells}, or other weights")
    text = f"exit {ends[0].code} and {ends[1].code}, one table, {sum(cells)} cells, each kept once"
    return Seen(text, 2, min(2, len(problems)), tuple(problems))


def _letters(sweeps: Sweeps, codings: Sequence[str]) -> Seen:
    place: Path = sweeps.place
    (place / "talks_plug.py").write_text(PLUGIN)
    (place / "conf" / "encoding" / "talks.yaml").write_text("name: talks\n")
    words = ["train", "-m", "--config-dir", "conf", "plugins=[talks_plug]", "data.paths=texts", *TINY]
    words += ["encoding=talks", "seed=0,1", "runs_dir=talks"]
    problems, seconds = [], []
    for coding in codings:
        several = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", f"runs_dir=talks-{coding}")
        env = {**sweeps.env, "PYTHONIOENCODING": coding, "PYTHONUTF8": "0"}
        ended = posenc(place, *words, *several, env=env, seconds=300)
        seconds.append(f"{ended.seconds:.0f} s")
        states = sweeps.states(f"talks-{coding}")
        if ended.code or states != ["finished"] * 2 or "Traceback" in ended.err:
            problems.append(f"{coding}: exit {ended.code}, {states}: {ended.err[-900:]}")
        printed = sum(line.startswith("printed ") for line in ended.out.splitlines())
        numbered = sum(line.startswith("stdout ") for line in ended.out.splitlines())
        if (printed, numbered) != (2, 2 * LINES):
            problems.append(f"{coding}: {printed} and {numbered} lines of the jobs' stdout came through")
    return Seen(
        f"every line came through, {' and '.join(seconds)}", len(codings), len(problems), tuple(problems)
    )

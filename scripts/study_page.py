"""Remake every table and figure of docs/study.md (and of the README) from the records in docs/study/.

    python scripts/study_page.py            write what changed
    python scripts/study_page.py --check    only tell what would change; exit code 1 if anything would
A table stands between `<!-- posenc ... -->` and `<!-- end -->`: it is what that command prints. A command
with `--plot FILE` or `--html FILE` stands alone, and the file is what it draws. Nothing is trained.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "study.md", ROOT / "README.md")
TABLE = re.compile(
    r"(?P<head><!-- (?P<command>posenc [^\n]*?) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.S
)
FIGURE = re.compile(r"<!-- drawn by: (?P<command>posenc [^\n]*? --plot (?P<file>\S+)[^\n]*?) -->")


def printed(command: str) -> str:
    """What the command prints on stdout, at 80 columns, in the root of the clone."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    words = [sys.executable, "-m", "posenc", *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stderr}")
    return done.stdout


def remade(text: str) -> str:
    """The page with every table as its command prints it now."""

    def table(found: re.Match[str]) -> str:
        body = printed(found["command"]).rstrip() + "\n"
        if "--format markdown" not in found["command"]:
            body = f"```text\n{body}```\n"
        return f"{found['head']}{body}{found['end']}"

    return TABLE.sub(table, text)


def figures(text: str) -> dict[Path, bytes]:
    """The bytes of every figure of the page, drawn anew elsewhere."""
    drawn = {}
    with tempfile.TemporaryDirectory() as folder:
        for found in FIGURE.finditer(text):
            file = Path(found["file"])
            elsewhere = Path(folder) / file.name
            printed(found["command"].replace(found["file"], shlex.quote(str(elsewhere))))
            drawn[ROOT / file] = elsewhere.read_bytes()
    return drawn


def main() -> int:
    """Write or check; 1 if something differed and was not to be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args().check
    began, changed = time.monotonic(), []
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        made: dict[Path, bytes] = {page: remade(old).encode(), **figures(old)}
        for path, data in made.items():
            if not path.is_file() or path.read_bytes() != data:
                changed.append(path)
                if not check:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
    told = ", ".join(str(path.relative_to(ROOT)) for path in changed) or "nothing"
    print(f"{'differs' if check else 'written'}: {told} ({time.monotonic() - began:.0f} s)")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())

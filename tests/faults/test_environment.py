"""Streams, encodings, limits, folders, trackers that are not as usual: it works, or says why in a line."""

import re
import shlex
import sys

import pytest
from battery import SHORT, called, command

POSENC = f"{shlex.quote(sys.executable)} -m posenc"
pytestmark = pytest.mark.faults


POSIX = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
CASES = [  # a script, exit codes, what stderr says
    ("set -o pipefail; {} compare | head -1", (0, 1, 141), "^$", {}),
    ("{} compare --format json > /dev/full", (1,), "No space left", {}),
    ("{} runs <&- >&- 2>&-", (0, 1), "^$", {}),
    ("{} compare", (0,), "", POSIX),
    ("mkdir gone; cd gone; rmdir ../gone; {} runs", (0, 1, 2), "", {}),
    ("ulimit -n 64; {train} runs_dir=few", (0,), "", {}),
    ("ulimit -f 100; {train} runs_dir=short", (1,), "File too large", {}),
]


@pytest.mark.parametrize(
    ("script", "codes", "says", "env"), CASES, ids=[case[0] + "".join(case[3]) for case in CASES]
)
def test_it_works_or_says_why(run_copy, place, corpus, script, codes, says, env):
    train = f"{POSENC} {shlex.join(command(corpus, *SHORT, 'encoding=rope'))}"
    result = called("bash", "-c", script.replace("{train}", train).replace("{}", POSENC), cwd=place, **env)
    assert result.code in codes and re.search(says, result.err), result
    assert not re.search("Traceback|Exception ignored|fault of posenc", result.err), result.err
    assert not env or result.out.isascii()

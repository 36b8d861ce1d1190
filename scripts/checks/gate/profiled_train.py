"""Run `posenc ARGUMENTS` in this process and write which files of posenc had a function called.

    python profiled_train.py PACKAGE_FOLDER OUT.json ARGUMENTS...

Run by counts.py with the interpreter and the PYTHONPATH of the tree that is counted. OUT.json has the
files up to the first update of the weights (`first_step`), all of them (`table`), and those that only ran
while a module was imported (`imports`).
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

MODULE_LEVEL = "<module>"
UPDATE_FILE = "torch/optim/adam.py"
UPDATE_FUNCTION = "adam"  # both optimizers of posenc call it


class CallRecorder:
    """A profile function that notes files of a package once one of their functions is called."""

    def __init__(self, package: str) -> None:
        self.package = package + "/"
        self.called: set[str] = set()
        self.called_by_imports: set[str] = set()
        self.called_before_update: set[str] | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if self._is_ours(code):
            self._note(frame)
        elif self.called_before_update is None and self._is_update(code):
            self.called_before_update = set(self.called)

    def _is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self.package)

    def _is_update(self, code: CodeType) -> bool:
        return code.co_name == UPDATE_FUNCTION and code.co_filename.endswith(UPDATE_FILE)

    def _note(self, frame: FrameType) -> None:
        file = frame.f_code.co_filename[len(self.package) :]
        if file in self.called:
            return
        if self._while_importing(frame):
            self.called_by_imports.add(file)
        else:
            self.called.add(file)

    def _while_importing(self, frame: FrameType) -> bool:
        """Tell whether a module's top level is below this call on the stack."""
        caller: FrameType | None = frame
        while caller is not None:
            if caller.f_code.co_name == MODULE_LEVEL and self._is_ours(caller.f_code):
                return True
            caller = caller.f_back
        return False


def main() -> int:
    package, out, *arguments = sys.argv[1:]
    recorder = CallRecorder(package)
    sys.argv = ["posenc", *arguments]
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        from posenc.cli import main as posenc_main

        posenc_main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.setprofile(None)
    if recorder.called_before_update is None:
        sys.exit("the weights were never updated: has the optimizer another function?")
    counted = {
        "first_step": sorted(recorder.called_before_update),
        "table": sorted(recorder.called),
        "imports": sorted(recorder.called_by_imports - recorder.called),
    }
    Path(out).write_text(json.dumps(counted))
    return code


if __name__ == "__main__":
    sys.exit(main())

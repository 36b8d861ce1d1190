"""Train every encoding for one step that changes no weight; print the folder of each run as JSON.

    python initial_values.py KEY=VALUE...      settings of `posenc train`

Run by bits.py with the interpreter and the PYTHONPATH of the tree that is observed.
"""

import json
import sys

import yaml

import posenc
from posenc.encodings import list_encodings


def main() -> None:
    settings = {}
    for word in sys.argv[1:]:
        key, value = word.split("=")
        settings[key] = yaml.safe_load(value)
    folders = {}
    for name in list_encodings():
        run = posenc.train(encoding=name, name=name, **settings)
        folders[name] = str(run.path)
    print(json.dumps(folders))


if __name__ == "__main__":
    main()

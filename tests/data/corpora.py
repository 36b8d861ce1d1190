"""Settings of corpora, files and stories."""

import yaml

from posenc.core.paths import conf_dir
from posenc.data import read_documents
from posenc.data.documents import Notes

BYTES = {"name": "bytes"}
BPE = {"name": "bpe", "vocab_size": 290}


def conf(name, /, **changes):
    data = yaml.safe_load((conf_dir() / "data" / f"{name}.yaml").read_text())
    return {**data, **changes}


def files(paths, **changes):
    """Settings of data=files over one path or a list."""
    given = [str(p) for p in paths] if isinstance(paths, list) else str(paths)
    return conf("files", paths=given, split={"validation": 0.2, "test": 0.2}, **changes)


def documents_of(data):
    return list(read_documents(data, Notes()))


def story(i):
    return f"Story {i} naïve 🙂: " + "once upon a time " * (i % 9 + 1)

"""Settings of corpora and tokenizers, documents and stories."""

import yaml

from posenc.core.paths import conf_dir
from posenc.data import read_documents
from posenc.data.documents import Notes
from posenc.settings.tree import DataSettings, TokenizerSettings

BYTES = TokenizerSettings(name="bytes")


def bpe(vocab_size=290):
    return TokenizerSettings(name="bpe", vocab_size=vocab_size)


def library_tokenizer(path):
    return TokenizerSettings(name="hf", path=str(path), revision="main")


def conf(name, /, **changes):
    """The settings of a corpus as its YAML has them, with changes."""
    values = yaml.safe_load((conf_dir() / "data" / f"{name}.yaml").read_text())
    return DataSettings.model_validate({**values, **changes})


def files(paths, **changes):
    """Settings of data=files over one path or a list."""
    typed = [str(path) for path in paths] if isinstance(paths, list) else str(paths)
    return conf("files", paths=typed, split={"validation": 0.2, "test": 0.2}, **changes)


def documents_of(data):
    return read_documents(data, Notes())


def texts_of(paths, **changes):
    """The texts of data=files by the ids of their documents."""
    return {document.id: document.text for document in documents_of(files(paths, **changes))}


def story(i):
    return f"Story {i} naïve 🙂: " + "once upon a time " * (i % 9 + 1)

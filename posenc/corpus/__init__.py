"""Text -> documents -> tokens on disk -> batches."""

from posenc.corpus.batches import WindowSampler
from posenc.corpus.cache import prepare
from posenc.corpus.checks import check_lengths, inspect, left_out_of_training
from posenc.corpus.documents import Document
from posenc.corpus.facts import CorpusFacts, read_facts
from posenc.corpus.listing import cached_of, list_corpora
from posenc.corpus.registry import absolute_data, check_data, read_documents
from posenc.corpus.store import Split, TokenStore
from posenc.corpus.tokenizer_choice import (
    absolute_tokenizer,
    build_tokenizer,
    check_tokenizer,
    stored_tokenizer,
)
from posenc.corpus.tokenizers import Tokenizer

__all__ = [
    "CorpusFacts",
    "Document",
    "Split",
    "TokenStore",
    "Tokenizer",
    "WindowSampler",
    "absolute_data",
    "absolute_tokenizer",
    "build_tokenizer",
    "cached_of",
    "check_data",
    "check_lengths",
    "check_tokenizer",
    "inspect",
    "left_out_of_training",
    "list_corpora",
    "prepare",
    "read_documents",
    "read_facts",
    "stored_tokenizer",
]

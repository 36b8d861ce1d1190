"""Text -> documents -> tokens on disk -> batches."""

from posenc.data.batches import WindowSampler
from posenc.data.cache import prepare
from posenc.data.checks import check_lengths, inspect, left_out_of_training
from posenc.data.documents import Document
from posenc.data.facts import CorpusFacts, read_facts
from posenc.data.listing import cached_of, list_corpora
from posenc.data.registry import absolute_data, check_data, read_documents
from posenc.data.store import Split, TokenStore
from posenc.data.tokenizer_choice import (
    absolute_tokenizer,
    build_tokenizer,
    check_tokenizer,
    stored_tokenizer,
)
from posenc.data.tokenizers import Tokenizer

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

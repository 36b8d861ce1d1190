"""Text to documents to tokens on disk to batches."""

from posenc.data.batches import WindowSampler
from posenc.data.corpus_stats import (
    CorpusFacts,
    cached_of,
    check_lengths,
    inspect,
    left_out_of_training,
    list_corpora,
    read_facts,
)
from posenc.data.documents import Document
from posenc.data.registry import absolute_data, check_data, read_documents
from posenc.data.token_cache import Split, TokenStore
from posenc.data.tokenise import prepare
from posenc.data.tokenizers import (
    Tokenizer,
    absolute_tokenizer,
    build_tokenizer,
    check_tokenizer,
    stored_tokenizer,
)

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

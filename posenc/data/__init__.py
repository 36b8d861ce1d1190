"""Text to documents to tokens on disk to batches."""

from posenc.data.catalogue import list_corpora as list_corpora
from posenc.data.corpus import CorpusFacts as CorpusFacts
from posenc.data.corpus import check_lengths as check_lengths
from posenc.data.corpus import corpus_notes as corpus_notes
from posenc.data.corpus import inspect as inspect
from posenc.data.corpus import prepare as prepare
from posenc.data.corpus import read_facts as read_facts
from posenc.data.corpus import training_texts as training_texts
from posenc.data.planted import PlantedSampler as PlantedSampler
from posenc.data.planted import check_plant as check_plant
from posenc.data.planted import plant_of as plant_of
from posenc.data.planted import vocabulary as vocabulary
from posenc.data.sources import absolute_data as absolute_data
from posenc.data.sources import is_measured_whole as is_measured_whole
from posenc.data.sources import measured_whole as measured_whole
from posenc.data.sources import read_documents as read_documents
from posenc.data.token_cache import Split as Split
from posenc.data.token_cache import TokenStore as TokenStore
from posenc.data.tokenizers import absolute_tokenizer as absolute_tokenizer
from posenc.data.tokenizers import build_tokenizer as build_tokenizer
from posenc.data.tokenizers import check_tokenizer as check_tokenizer
from posenc.data.tokenizers import stored_tokenizer as stored_tokenizer
from posenc.data.windows import Batch as Batch
from posenc.data.windows import ScheduledSampler as ScheduledSampler
from posenc.data.windows import WindowSampler as WindowSampler
from posenc.data.windows import WindowStage as WindowStage

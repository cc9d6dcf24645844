"""The subject-verb agreement benchmark: sentences in which one known word, the subject, decides the verb's number.

    from lrpx.benchmark import build, fetch, tokenize

    build(fetch("lgd"), "sva")  # parse, find the subjects, write Parquet files and a dataset card
    for sample in tokenize("sva", "gpt2").samples:
        ...  # sample.input_ids, sample.verb_id, sample.other_id, sample.ground_truth

``docs/benchmark.md`` describes the files. Reading them needs pyarrow, parsing spaCy: ``pip install "lrpx[sva]"``.
"""

from .builder import build
from .download import fetch
from .folder import Benchmark, TokenizedSample, TokenizedSet, load_benchmark, load_tokenized
from .tokenized import fingerprint, tokenize

__all__ = [
    "Benchmark",
    "TokenizedSample",
    "TokenizedSet",
    "build",
    "fetch",
    "fingerprint",
    "load_benchmark",
    "load_tokenized",
    "tokenize",
]

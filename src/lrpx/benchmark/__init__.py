"""Benchmarks with ground truth: subject-verb agreement, where the subject decides the verb's number, and others in its form.

    from lrpx.benchmark import build, fetch, tokenize

    build(fetch("lgd"), "sva")  # parse, find the subjects, write Parquet files and a dataset card
    for sample in tokenize("sva", "gpt2").samples:
        ...  # sample.input_ids, sample.verb_id, sample.other_id, sample.ground_truth

``build_blimp`` takes BLiMP's agreement paradigms, ``build_haystack`` makes long texts in which one sentence has the answer.
``docs/benchmark.md`` describes the files. Reading them needs pyarrow, parsing spaCy: the extra ``sva``.
"""

from .blimp_builder import build_blimp
from .builder import build
from .download import fetch
from .folder import Benchmark, TokenizedSample, TokenizedSet, load_benchmark, load_tokenized
from .haystack import build_haystack
from .tokenized import fingerprint, tokenize

__all__ = [
    "Benchmark",
    "TokenizedSample",
    "TokenizedSet",
    "build",
    "build_blimp",
    "build_haystack",
    "fetch",
    "fingerprint",
    "load_benchmark",
    "load_tokenized",
    "tokenize",
]

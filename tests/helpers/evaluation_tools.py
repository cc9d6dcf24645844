"""Things the tests of evaluation and report share: a small benchmark, tokenizers and random models for it, made-up runs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark_tools import NOUNS, byte_bpe, word_piece
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from lrpx.benchmark import build
from lrpx.evaluation.metrics import score
from lrpx.evaluation.records import METRICS, SCHEMA, Record, Run, finish, open_run, write_part

CONDENSED = ["lrp", "alti-logit", "gradient-l1"]  # the methods of the made-up run that is condensed
OF_RAY = [  # marks of tests that start it
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),  # Ray's own use of what it deprecated
    # Older releases of Ray leave files and processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WORDS = ["old", "big", "green", "quiet", "very"]


def sentences(count=40):
    """``(words, verb_index, other, subject, attractor)``: up to 60 different ones of 8 to 12 words, half of them singular."""
    found = []
    for n in range(count):
        (one, many), (near, nears) = NOUNS[n % 4], NOUNS[(n + 1 + n // 20) % 4]
        subject, attractor, verb, other = (one, nears, "is", "are") if n % 2 else (many, near, "are", "is")
        adjectives = [WORDS[(n + k) % 5] for k in range(n % 5)]
        words = ["the", *adjectives, subject, "near", "the", attractor, verb, WORDS[n % 5], "."]
        found.append((words, words.index(verb), other, 1 + len(adjectives), 4 + len(adjectives)))
    return found


def benchmark(folder: Path, count=40) -> Path:
    """A finished benchmark of ``count`` sentences, without tokenised sets."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, truth = [], ["sample_id\tsubject\tattractors"]
    for n, (words, verb, other, subject, attractor) in enumerate(sentences(count)):
        masked = [*words[:verb], "***mask***", *words[verb + 1 :]]
        lines.append("\t".join(["1", " ".join(words), " ".join(masked), words[verb], other]))
        truth.append(f"{n}\t{subject}\t{attractor}")
    (folder / "source.tsv").write_text("\n".join(lines) + "\n")
    (folder / "truth.tsv").write_text("\n".join(truth) + "\n")
    build(folder / "source.tsv", folder / "sva", ground_truth=folder / "truth.tsv", progress=False)
    return folder / "sva"


def _corpus():
    return [" ".join(words) for words, *_ in sentences()]


@cache
def gpt2(dtype=torch.float64, *, scale=0.3, seed=0):
    """A random model with its tokenizer; it predicts about half of the verbs correctly."""
    tokenizer = byte_bpe(_corpus(), size=330)
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=24, n_embd=16, n_layer=2, n_head=2, tie_word_embeddings=False
    )
    return _drawn(GPT2LMHeadModel(config), dtype, scale), tokenizer


@cache
def bert(dtype=torch.float64, *, scale=0.3, seed=0):
    """The same for masked input."""
    tokenizer = word_piece(_corpus())
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return _drawn(BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)), dtype, scale), tokenizer


def _drawn(model, dtype, scale):
    model = model.to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


# Made-up runs, for the report: any relevance, no model.

MODEL = {
    "name": "made-up",
    "revision": None,
    "weights": "00",
    "architecture": "GPT2LMHeadModel",
    "dtype": "float32",
    "device": "cpu",
    "attn_implementation": "sdpa",
    "parameters": 26_028_480,
    "layers": 8,
    "heads": 5,
    "width": 320,
    "vocabulary": 50257,
    "tokenizer": "BPE",
}
OPTIONS = {"limit": None, "seed": 0, "at": "input", "batch_tokens": 4096, "relevances": None}
BENCHMARK = {
    "source": "source.tsv",
    "published": None,
    "ground_truth": "truth.tsv",
    "parser": None,
    "tokenized": "gpt2",
    "input": "causal",
    "tokenizer": "11",
    "sentences": "22",
    "samples": "33",
}


def made_up(
    folder: Path,
    methods,
    *,
    samples=30,
    seed=0,
    parts=1,
    model=None,
    benchmark=None,
    options=None,
    versions=None,
    selection="44",
    done=None,
    change=None,
) -> Run:
    """A run with random relevance.

    Args:
        folder: Where.
        methods: Names. Relevance depends on the method's name, predictions do not.
        samples: How many.
        seed: Of the samples.
        parts: How many parts.
        model: Changes to the model's facts; likewise ``benchmark`` and ``options``.
        versions: Of the packages.
        selection: Checksum of the samples.
        done: How many parts are there; all by default.
        change: Called with each record, returns the one to write.
    """
    manifest = {
        "kind": "run",
        "schema": SCHEMA,
        "benchmark": {**BENCHMARK, **(benchmark or {})},
        "model": {**MODEL, **(model or {})},
        "methods": list(methods),
        "options": {**OPTIONS, **(options or {})},
        "plan": {"samples": samples, "parts": parts, "selection": selection},
        "versions": versions or {"lrpx": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0"},
    }
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    run = open_run(folder)
    records = [record for n in range(samples) for record in _records(n, methods, seed)]
    records = [change(record) if change else record for record in records]
    size = -(-len(records) // parts)
    for n in range(parts if done is None else done):
        write_part(run, n, records[n * size : (n + 1) * size])
    return finish(run) if done is None else run


def _records(n, methods, seed):
    rng = np.random.default_rng([seed, n])
    length = int(rng.integers(3, 9))
    subject = int(rng.integers(length))
    roles = [["other", "attractor", "special"][int(k)] for k in rng.integers(3, size=length)]
    roles[subject] = "subject"
    correct = bool(rng.random() < 0.8)
    value = float(rng.uniform(0.1, 5))
    for method in methods:
        relevance = np.random.default_rng([seed, n, *method.encode()]).normal(size=length)
        if method.startswith("gradient-l"):
            relevance = np.abs(relevance)
        scores = score([relevance], [[subject]]).to_dict()
        yield Record(
            sample_id=1000 - 7 * n,
            method=method,
            at=None if method.startswith("alti") else "input",
            predicted="are",
            other="is",
            predicted_id=5,
            other_id=6,
            correct=correct,
            value=value,
            residual=None,
            position=length - 1,
            tokens=[f"Ġword{k}" for k in range(length)],
            token_ids=list(range(length)),
            roles=roles,
            ground_truth=[subject],
            attractors=1 + n % 4,
            relevance=relevance,
            **{name: float(scores[name][0]) for name in METRICS},
            error=None,
        )

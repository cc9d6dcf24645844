"""Tokenise a benchmark for one model: token ids, where the verb is predicted, which tokens are the subject.

Per sentence (Arras et al. 2025, App. "XAI Benchmark Dataset Generation"):

1. The input: for a causal model the text before the verb, for a masked one the sentence with the mask token.
2. Both verb forms must be one token *in this context*: encoding the text with the verb in place must give the ids of
   the input plus one (causal) or with the mask's id exchanged (masked). So leading spaces are those of the tokenizer.
3. The ground truth: tokens whose character offsets overlap the subject word. Token ids are never searched, so repeated
   words do not matter. The tokens must cover the word and nothing else.
4. Drop trivial samples, whose ground truth is not shorter than the input without its special tokens (so at least two of
   those are left), and for causal models samples with the subject after the verb.

Special tokens that the model sees are part of the input and are scored; the column ``roles`` tells them apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..errors import InputError, import_optional
from ..files import sha256, write_json, write_text
from .align import REASONS, Sentence, align
from .card import card
from .folder import Benchmark, TokenizedSample, TokenizedSet, load_benchmark, load_tokenized, set_name
from .sources import Dropped
from .storage import SCHEMA, check_claim, claim, count, losses, write_dropped, write_table

_CHUNK = 1000  # sentences per tokenizer call


def tokenize(
    directory: str | Path,
    tokenizer: Any,
    *,
    name: str | None = None,
    input: str | None = None,
    progress: bool = True,
) -> TokenizedSet:
    """Make the tokenised set of one tokenizer in a benchmark folder, and bring the card up to date.

    Args:
        directory: A folder made by ``build``.
        tokenizer: A name on the Hub, a path, or a loaded fast tokenizer.
        name: Name of the set; by default the tokenizer's.
        input: ``"causal"`` or ``"masked"``. By default what the model stored with a named tokenizer is, else masked if the
            tokenizer has a mask token.
        progress: Show a progress bar, on a terminal.

    Returns:
        The finished set; one that was finished before is returned as it is.

    Raises:
        InputError: The folder is not a benchmark, the tokenizer cannot be loaded, gives no offsets or has no mask token,
            a set of this name was made from something else, or no sample is left.
        LrpxError: A file could not be written.
    """
    benchmark = load_benchmark(directory)
    given, tokenizer = tokenizer, load_tokenizer(tokenizer)
    kind = _input_kind(given, tokenizer, input or benchmark.manifest.get("input"))
    if kind != benchmark.manifest.get("input", kind):
        raise InputError(f"{directory} is for causal models, which continue its texts; this one is {kind}.")
    name = set_name(name or tokenizer.name_or_path or type(tokenizer).__name__)
    folder = benchmark.path / "tokenized" / name
    manifest = {
        "kind": "tokenized",
        "schema": SCHEMA,
        "benchmark": sha256(benchmark.path / "samples.parquet"),
        "tokenizer": {"name": name, **fingerprint(tokenizer)},
        "input": kind,
        "max_length": tokenizer.model_max_length,
    }
    check_claim(folder, manifest, what="tokenised set")
    if not (folder / "counts.json").exists():
        kept, dropped = _tokenize(benchmark, tokenizer, kind, progress)
        counts = count(len(benchmark), dropped, REASONS)
        if not kept:
            example = f"; for instance line {dropped[0].line}: {dropped[0].detail}" if dropped else ""
            raise InputError(f"{name}: no sample is left of {len(benchmark)} ({losses(counts)}){example}.")
        claim(folder, manifest, what="tokenised set")
        _write(folder, kept, dropped, counts)
    result = load_tokenized(directory, name)
    write_text(benchmark.path / "README.md", card(load_benchmark(directory)))
    return result


def load_tokenizer(tokenizer: Any) -> Any:
    """A tokenizer that can be used here, from its name if need be.

    Raises:
        InputError: It cannot be loaded, or it is a slow one, which has no character offsets.
    """
    if isinstance(tokenizer, str | Path):
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(tokenizer))
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"the tokenizer {str(tokenizer)!r} cannot be loaded: {error}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} is a slow tokenizer: it does not tell which characters a token stands for, so the "
            "subject's tokens cannot be found. Use the fast one (a folder with tokenizer.json; "
            "AutoTokenizer.from_pretrained gives it where there is one)."
        )
    return tokenizer


def fingerprint(tokenizer: Any) -> dict[str, Any]:
    """What a tokenised set depends on: a checksum of the tokenizer, and facts to read.

    Two tokenizers with the same checksum give the same ids; padding, truncation and greatest length do not count.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state.pop("padding", None)
    state.pop("truncation", None)
    text = json.dumps([state, tokenizer.mask_token, tokenizer.unk_token], sort_keys=True)
    return {
        "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
        "model": state["model"].get("type"),
        "vocabulary": len(tokenizer),
    }


def _input_kind(given: Any, tokenizer: Any, kind: str | None) -> str:
    """``causal`` or ``masked``: as requested, else by the model, else by what the tokenizer supports."""
    if kind is None:
        kind = _model_kind(given) or ("causal" if tokenizer.mask_token is None else "masked")
    if kind not in ("causal", "masked"):
        raise InputError(f"input {kind!r}: give 'causal' or 'masked'.")
    if kind == "masked" and tokenizer.mask_token is None:
        raise InputError(f"{tokenizer.name_or_path}: masked input needs a mask token, and this tokenizer has none.")
    return kind


def _model_kind(given: Any) -> str | None:
    """The kind of the model that a named tokenizer belongs to. Gemma's, for one, has a mask token but is causal."""
    if not isinstance(given, str | Path):
        return None
    from transformers import AutoConfig

    try:
        architectures = AutoConfig.from_pretrained(str(given)).architectures or []
    except (OSError, ValueError, KeyError):  # a folder with a tokenizer alone
        return None
    for kind, endings in (("masked", ("ForMaskedLM", "ForPreTraining")), ("causal", ("ForCausalLM", "LMHeadModel"))):
        if any(name.endswith(endings) for name in architectures):
            return kind
    return None


def _tokenize(
    benchmark: Benchmark, tokenizer: Any, kind: str, progress: bool
) -> tuple[list[TokenizedSample], list[Dropped]]:
    """All kept samples and all dropped ones."""
    there = benchmark.samples.column_names
    columns = [benchmark.samples.column(name).to_pylist() for name in Sentence._fields if name in there]
    first_token = benchmark.manifest.get("predicted") == "first_token"
    sentences = [Sentence(*values) for values in zip(*columns, strict=True)]
    found: list[TokenizedSample | Dropped] = []
    with tqdm(total=len(sentences), desc="tokenize", unit="row", disable=None if progress else True) as bar:
        for start in range(0, len(sentences), _CHUNK):
            chunk = sentences[start : start + _CHUNK]
            found += align(tokenizer, kind, chunk, first_token=first_token)
            bar.update(len(chunk))
    kept = [result for result in found if isinstance(result, TokenizedSample)]
    return kept, sorted(result for result in found if isinstance(result, Dropped))


def _write(folder: Path, kept: Sequence[TokenizedSample], dropped: Sequence[Dropped], counts: dict[str, Any]) -> None:
    """Write the results; ``counts.json`` is written last and marks the folder as complete."""
    pa = import_optional("pyarrow", "Writing a tokenised set")
    types = {
        "sample_id": pa.int64(),
        "text": pa.string(),
        "input_ids": pa.list_(pa.int32()),
        "tokens": pa.list_(pa.string()),
        "position": pa.int32(),
        "verb": pa.string(),
        "other": pa.string(),
        "verb_id": pa.int32(),
        "other_id": pa.int32(),
        "ground_truth": pa.list_(pa.int32()),
        "roles": pa.list_(pa.string()),
        "verb_tag": pa.string(),
        "n_attractors": pa.int32(),
    }
    write_table(
        folder / "samples.parquet", "tokenized", {name: [getattr(s, name) for s in kept] for name in types}, types
    )
    write_dropped(folder / "dropped.parquet", dropped)
    write_json(folder / "counts.json", counts)

"""Methods x model x benchmark -> records: does the relevance point at the subject?

Per sample of a tokenised set (Arras et al. 2025, sections "SVA Task" and "Evaluation Metrics"):

1. The model predicts the verb form with the larger logit. The prediction is correct if that is the sentence's own form.
2. Every method explains ``logit[predicted] - logit[other]``, and the relevance is scored against the subject's tokens.
3. One record per sample and method goes to disk (``records.py``). Averages over them are the report's business.

Batches, and the parts in which records are written, follow from the samples' lengths alone. So a run that was killed goes on
where it stopped, and ends with the same bytes. Samples and batches are chosen in ``selection.py``; how one batch becomes
records, whatever happens, is in ``scoring.py``.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..benchmark import Benchmark, TokenizedSet, load_benchmark
from ..benchmark.folder import set_name
from ..benchmark.storage import check_place, claim
from ..errors import InputError, UnsupportedModelError, nearest
from ..files import sha256
from ..methods import METHODS, Method, get_method, methods_with_options
from ..methods.alti.families import find_family
from ..methods.rule_names import linear_rule
from ..models.loading import load
from ..models.positions import longest_alike
from ..models.precision import is_exact
from ..models.provenance import card_of, model_facts, provenance
from ..models.reader import tokenizer_of
from ..models.signature import task_of
from ..models.usable import usable_model
from ..passes.dispatch import Execution, PassRunner
from ..passes.hidden_states import resolve_at
from ..text.grouping import allowed_waste
from .external import check_relevances, manifest_entry, read_relevances
from .hidden_tokens import faithfulness_metrics
from .records import SCHEMA, Record, Run, finish, open_run, part_is_done, write_part, write_part_bytes
from .scoring import BatchExplainer, recorded_names, sources
from .selection import Part, plan, select, tokenized_set

logger = logging.getLogger("lrpx")

PAPER_METHODS = ("alti-logit", "lrp", "attnlrp", "gradient", "gradient-x-input")


def evaluate(
    directory: str | Path,
    model: Any,
    methods: Sequence[str] | None,
    out: str | Path,
    *,
    tokenizer: Any = None,
    tokenized: str | None = None,
    relevances: str | Path | None = None,
    metrics: Sequence[str] = (),
    limit: int | None = None,
    seed: int = 0,
    at: str = "input",
    rules: str | None = None,
    batch_tokens: int | None = None,
    progress: bool | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    fast: bool | None = None,
    compile: bool = False,
    checkpoint: bool | None = None,
    **loading: Any,
) -> Run:
    """Explain the predictions of a model on a benchmark, score the explanations, and write the records to ``out``.

    Args:
        directory: A benchmark folder. A tokenised set for the model's tokenizer is made there if it has none.
        model: A name or path for ``lrpx.load``, or a loaded model.
        methods: Names of methods. ``"gradient"`` stands for both of its norms, recorded as ``gradient-l1`` and
            ``gradient-l2``. ``None``: those of the paper, ALTI-Logit only where the model's family is known to it; with
            ``relevances``: no others.
        out: A new or empty folder, or one in which the same run was stopped or finished.
        tokenizer: The tokenizer of a loaded model.
        tokenized: Name of the tokenised set, if several fit.
        relevances: A file of explanations made elsewhere, to be scored (``external.py`` describes it). Only samples that it
            explains are evaluated.
        metrics: Measures of faithfulness to compute beside the paper's four metrics: ``"area_most"``, ``"area_least"``,
            ``"difference"``, ``"comprehensiveness"``, ``"sufficiency"``, or ``"faithfulness"`` for all (``hidden_tokens.py``).
            They take about 20 to 50 forward passes for each sample and method.
        limit: Evaluate this many samples, chosen by ``seed`` and ``sample_id``: a smaller limit chooses among those of a
            larger one, and models with different tokenizers get the same sentences (those that both have).
        seed: For ``limit``.
        at: Where relevance is taken: ``"input"`` (what enters the first block, positions added), ``"embedding"`` (the
            word-embedding rows), or the name of a module whose output is one hidden state per token, such as
            ``"model.layers.7"``. ALTI, ALTI-Logit and attention rollout have no such choice.
        rules: A rule for layers that multiply by weights, for LRP and its variants: ``"alpha1beta0"``, ``"gamma=0.25"`` or
            ``"epsilon=1e-6"``.
        batch_tokens: Tokens per batch, padding included. Default: 4,096, on a GPU 16,384.
        progress: Show a progress bar. Default: on a terminal.
        engine: ``"local"``: in this process. ``"ray"``: by workers of a Ray cluster, each with a model of its own, which must
            be given by name. The records are the same, and a run may go on with the other engine.
        address: Of the Ray cluster; see ``ray_engine.connect`` for this and ``workers``.
        workers: How many. Default: one per GPU, without GPUs one per share of the CPUs.
        fast: With the next two, how passes are run; see ``lrpx.Explainer``.
        compile: Fuse the pass with TorchInductor: worth it for many samples on a GPU.
        checkpoint: Recompute blocks in the backward pass, to save memory.
        **loading: For ``lrpx.load``: ``dtype``, ``device``, ``attn_implementation``, ``revision``, ``token``. ``dtype`` is
            ``"float32"`` here if not given: in bfloat16 the logits of the two forms may be equal, which is no correct
            prediction. ``"auto"``: the checkpoint's own.

    Returns:
        The finished run. ``run.failed`` counts samples that could not be explained; their records say why.

    Raises:
        InputError: Something given cannot be used, or ``out`` holds another run; the error names every difference.
        UnsupportedModelError: A method cannot explain this model.
        LrpxError: The first samples all fail, or the records cannot be written.
        ImportError: pyarrow is not installed, or Ray, for ``engine="ray"``.
    """
    execution = Execution(fast, compile, checkpoint)
    _check_numbers(limit=limit, batch_tokens=batch_tokens, workers=workers)
    measures = faithfulness_metrics(metrics)
    _check_engine(engine, model, address=address, workers=workers, device_map=loading.get("device_map"))
    _check_out(Path(out))
    names = None if methods is None else _known(methods)
    if isinstance(model, str | os.PathLike):
        loading["dtype"] = loading.get("dtype") or "float32"
    given = {} if relevances is None else read_relevances(relevances)
    if clash := sorted(set(given) & {n for name in METHODS for n in recorded_names(name)}):
        raise InputError(
            f"{relevances}: {clash[0]!r} is the name of a method of lrpx. Give it another name in the file."
        )
    benchmark = load_benchmark(directory)
    with _cluster(engine, address, workers, loading.get("device")) as cluster:
        # Workers load the model themselves, onto their devices; here it is only looked at.
        loaded, tokenizer = _loaded(model, tokenizer, loading if cluster is None else {**loading, "device": "cpu"})
        device = loaded.device.type if cluster is None else cluster.device
        if own := [name for name in names or [] if callable(METHODS[name].function) and engine == "ray"]:
            raise InputError(
                f"method {own[0]!r} was registered in this process, and the workers of engine='ray' do not know it. Use "
                "engine='local'."
            )
        if names is None:
            names = [] if given else _paper_methods(loaded)
        _check_place_of_relevance(loaded, at)
        chosen_methods = configured(names, at, rules)
        samples_of = tokenized_set(directory, tokenized, loaded, tokenizer)
        chosen = samples_of.samples
        if given:
            kept = check_relevances(given, chosen, relevances or "")
            if len(kept) < len(chosen):
                left_out = len(chosen) - len(kept)
                logger.warning("%d of %d samples have no relevance in %s", left_out, len(chosen), relevances)
            chosen = [chosen[n] for n in kept]
        chosen = select(chosen, limit, seed)
        if batch_tokens is None:
            batch_tokens = 4096 if device == "cpu" else 16384
        waste = allowed_waste(loaded, task_of(loaded))
        parts = plan(chosen, batch_tokens, waste, partial(longest_alike, loaded))
        facts = {**model_facts(loaded), "device": device, "tokenizer": samples_of.manifest["tokenizer"]["model"]}
        manifest = {
            "kind": "run",
            "schema": SCHEMA,
            "benchmark": _benchmark_facts(benchmark, samples_of),
            "model": facts,
            "methods": [n for name in names for n in recorded_names(name)] + sorted(given),
            "options": {
                "limit": limit,
                "seed": seed,
                "at": at,
                "batch_tokens": batch_tokens,
                "relevances": manifest_entry(relevances, given) if relevances is not None else None,
                # These change digits.
                **{name: True for name, on in (("compile", compile), ("tf32", not is_exact())) if on},
                **({"rules": rules} if rules is not None else {}),
                **({"metrics": list(measures)} if measures else {}),
            },
            "plan": {"samples": len(chosen), "parts": len(parts), "selection": _digest(s.sample_id for s in chosen)},
            "versions": provenance(loaded, "", {})["versions"],
        }
        claim(Path(out), manifest, what="run")
        this = open_run(out)
        if this.finished:
            return this
        proven = bool(this.parts)
        if cluster is None:
            runner = PassRunner(loaded, execution)
            for method in chosen_methods:
                runner.log_unused_options(method.name, has_passes=method.has_passes)
            of_run = sources(chosen_methods, runner, given)
            compute = _here(this, BatchExplainer(loaded, of_run, proven=proven, metrics=measures))
        else:
            job = cluster.job(model, loading, loaded, chosen_methods, given, execution, measures, proven=proven)
            del loaded
            compute = _there(this, cluster, job, samples_of.table)
        _fill(this, parts, progress, compute)
        return finish(this, card_of(device))


def evaluate_all(
    directory: str | Path, models: Sequence[Any], methods: Sequence[str] | None, out: str | Path, **options: Any
) -> list[Run]:
    """``evaluate`` for several models, one after the other, each in a folder of its own below ``out``.

    A single model is evaluated in ``out`` itself. ``lrpx report`` takes either folder.

    Raises:
        InputError: ``out`` holds the run of a single model, two models have the same name, and as ``evaluate``.
    """
    if len(models) == 1:
        return [evaluate(directory, models[0], methods, out, **options)]
    if (Path(out) / "manifest.json").exists():
        raise InputError(f"{out} holds the run of one model. Choose another folder for several.")
    folders = [Path(out) / set_name(os.fspath(model)) for model in models]
    twice = [path.name for path, n in Counter(folders).items() if n > 1]
    if twice:
        raise InputError(f"two models are called {twice[0]}: evaluate them one by one, each with a folder of its own.")
    return [evaluate(directory, m, methods, path, **options) for m, path in zip(models, folders, strict=True)]


# Computing


_Compute = Callable[[dict[int, Part], Any], None]  # parts by number, progress bar


def _fill(this: Run, parts: Sequence[Part], progress: bool | None, compute: _Compute) -> None:
    """Have every part computed that is not there yet."""
    repeats = len(this.manifest["methods"])
    expected = [[s.sample_id for batch in part for s in batch for _ in range(repeats)] for part in parts]
    missing = {n: parts[n] for n, ids in enumerate(expected) if not part_is_done(this, n, ids)}
    total = this.manifest["plan"]["samples"]
    done = total - sum(len(batch) for part in missing.values() for batch in part)
    hidden = None if progress is None else not progress  # None: shown on a terminal
    with tqdm(total=total, initial=done, desc=this.name, unit="sample", disable=hidden) as bar:
        if missing:
            compute(missing, bar)


def _here(this: Run, explain: BatchExplainer) -> _Compute:
    """In this process, part by part."""

    def compute(parts: dict[int, Part], bar: Any) -> None:
        for number, part in parts.items():
            records: list[Record] = []
            for batch in part:
                records += explain(batch)
                bar.update(len(batch))
                if failures := sum(explain.failed.values()):
                    bar.set_postfix(failed=failures, refresh=False)
            write_part(this, number, records)

    return compute


def _there(this: Run, cluster: Any, job: Any, table: Any) -> _Compute:
    """By the workers of a cluster, in whatever order they finish."""

    def compute(parts: dict[int, Part], bar: Any) -> None:
        failures = 0
        for done in cluster.compute(job, parts, table):
            write_part_bytes(this, done.number, done.content)
            bar.update(done.samples)
            if failures := failures + done.failed:
                bar.set_postfix(failed=failures, refresh=False)

    return compute


# The run's identity


def _benchmark_facts(benchmark: Benchmark, tokenized: TokenizedSet) -> dict[str, Any]:
    origin = benchmark.manifest["ground_truth"]
    return {
        "source": benchmark.manifest["source"]["name"],
        "published": (benchmark.counts["published"] or {}).get(
            "title"
        ),  # the file that its authors published, if it is one
        "ground_truth": next(iter(origin.values()))["name"],
        "parser": origin.get("parser"),
        **({"task": task} if (task := benchmark.manifest.get("task")) else {}),  # subject-verb agreement does not say
        "tokenized": tokenized.name,
        "input": tokenized.input,
        "tokenizer": tokenized.manifest["tokenizer"]["sha256"],
        "sentences": tokenized.manifest["benchmark"],
        "samples": sha256(tokenized.path / "samples.parquet"),
    }


def _digest(values: Any) -> str:
    return hashlib.sha256(" ".join(map(str, values)).encode()).hexdigest()


# What was given


def configured(names: Sequence[str], at: str, rules: str | None) -> list[Method]:
    """The methods, with the options that they are evaluated with.

    Raises:
        InputError: No such rule, or none of the methods has that choice.
    """
    if rules is not None:
        linear_rule(rules)
    asked = {"at": None if at == "input" else (at,), "rules": rules}
    if not names:
        if asked := {name: value for name, value in asked.items() if value is not None}:
            raise InputError(f"{' and '.join(asked)}: for methods of lrpx, and none is asked for.")
        return []
    return [replace(method, options=options) for method, options in methods_with_options(names, asked)]


def _check_place_of_relevance(model: PreTrainedModel, at: str) -> None:
    """Refuse what names no place, or several."""
    if not isinstance(at, str):
        raise InputError(f"at={at!r}: relevance of tokens is taken at one place: give one name.")
    found = list(resolve_at(model, (at,)))
    if at == "pixels":
        raise InputError("at='pixels': the benchmark has no images. Use at='input'.")
    if found != [at]:
        raise InputError(
            f"at={at!r} fits {len(found)} modules, and relevance of tokens is taken at one place. Give one of them: {found[0]}."
        )


def _known(methods: Sequence[str]) -> list[str]:
    """The methods, each once, in the order of the table of methods, so that the order they are given in does not matter."""
    if isinstance(methods, str) or not methods:
        raise InputError(f"methods={methods!r}: give a list of names, such as ['lrp', 'attnlrp'].")
    for name in methods:
        get_method(name)
    return [name for name in METHODS if name in methods]


def _paper_methods(model: PreTrainedModel) -> list[str]:
    names = list(PAPER_METHODS)
    try:
        find_family(model)
    except UnsupportedModelError as error:
        logger.warning("alti-logit is left out: %s", error)
        names.remove("alti-logit")
    return _known(names)


def _check_out(out: Path) -> None:
    """Refuse a folder that holds something else before anything is loaded or computed."""
    check_place(out, what="run")
    if (out / "manifest.json").exists():
        open_run(out)


def _check_numbers(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{name}={value!r}: give a whole number, 1 or more.")


def _check_engine(engine: str, model: Any, **options: Any) -> None:
    if engine not in ("local", "ray"):
        raise InputError(f"unknown engine {engine!r}. {nearest(engine, ['local', 'ray'])}")
    for name in ("address", "workers"):
        if engine == "local" and options[name] is not None:
            raise InputError(f"{name}={options[name]!r}: only with engine='ray'.")
    if engine == "ray" and not isinstance(model, str | os.PathLike):
        raise InputError(
            f"engine='ray' needs the model's name or path, from which its workers load it; a loaded {type(model).__name__} "
            "stays in this process. Save it with save_pretrained, or use engine='local'."
        )
    if engine == "ray" and options["device_map"] is not None:
        raise InputError("with engine='ray' each worker has one GPU. A divided model needs engine='local'.")


def _cluster(engine: str, address: str | None, workers: int | None, device: Any) -> AbstractContextManager[Any]:
    """Where to compute; gives ``None`` for this process."""
    if engine == "local":
        return nullcontext()
    from .ray_engine import connect

    return connect(address, workers, device)


def _loaded(model: Any, tokenizer: Any, loading: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    if isinstance(model, str | os.PathLike):
        loaded = load(model, **loading)
        return loaded.model, tokenizer_of(loaded.tokenizer if tokenizer is None else tokenizer)
    if loading := {k: v for k, v in loading.items() if v is not None}:
        raise InputError(
            f"{', '.join(loading)}: only for a model that is loaded by its name; this one is loaded already."
        )
    if tokenizer is None:
        raise InputError("a loaded model needs its tokenizer: evaluate(directory, model, methods, out, tokenizer=...).")
    return usable_model(model), tokenizer_of(tokenizer)

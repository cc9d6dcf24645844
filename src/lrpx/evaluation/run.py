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
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from ..benchmark import Benchmark, TokenizedSample, TokenizedSet, load_benchmark
from ..benchmark.folder import set_name
from ..benchmark.kinds import task_and_truth
from ..benchmark.storage import claim
from ..errors import InputError
from ..files import sha256
from ..methods import METHODS
from ..models.positions import longest_alike
from ..models.provenance import card_of, model_facts, versions
from ..models.signature import task_of
from ..passes.dispatch import PassRunner
from ..passes.execution import Execution
from ..text.grouping import allowed_waste
from .asked import (
    changes_of_digits,
    check_counts,
    check_engine,
    check_place_of_relevance,
    check_run_folder,
    computing_place,
    configured,
    default_batch_tokens,
    in_order_of_the_table,
    loaded_model,
    paper_methods,
)
from .external import ExternalRelevances, check_relevances, manifest_entry, read_relevances
from .hidden_tokens import faithfulness_metrics
from .own_methods import check_own_methods, manifest_entries
from .ray_cluster import Cluster
from .ray_engine import compute_parts, job_for
from .ray_worker import Job
from .records import SCHEMA, Record, Run, finish, open_run, part_is_done, write_part, write_part_bytes
from .scoring import BatchExplainer, recorded_names, sources
from .selection import Part, plan, select, tokenized_set

logger = logging.getLogger("lrpx")


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
        address: Of the Ray cluster; see ``ray_cluster.connect`` for this and ``workers``.
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
        InputError: Something given cannot be used, or ``out`` holds another run; the error names every difference. An edited
            method of your own makes another run, too.
        UnsupportedModelError: A method cannot explain this model.
        LrpxError: The first samples all fail, or the records cannot be written.
        ImportError: pyarrow is not installed, or Ray, for ``engine="ray"``.
    """
    execution = Execution(fast, compile, checkpoint)
    check_counts(limit=limit, batch_tokens=batch_tokens, workers=workers)
    measures = faithfulness_metrics(metrics)
    check_engine(engine, model, address=address, workers=workers, device_map=loading.get("device_map"))
    check_run_folder(Path(out))
    names = None if methods is None else in_order_of_the_table(methods)
    if isinstance(model, str | os.PathLike):
        loading["dtype"] = loading.get("dtype") or "float32"
    given = {} if relevances is None else read_relevances(relevances)
    if clash := sorted(set(given) & {n for name in METHODS for n in recorded_names(name)}):
        raise InputError(
            f"{relevances}: {clash[0]!r} is the name of a method of lrpx. Give it another name in the file."
        )
    benchmark = load_benchmark(directory)
    with computing_place(engine, address, workers, loading.get("device")) as cluster:
        # Workers load the model themselves, onto their devices; here it is only looked at.
        loaded, tokenizer = loaded_model(model, tokenizer, loading if cluster is None else {**loading, "device": "cpu"})
        device = loaded.device.type if cluster is None else cluster.device
        if ours := [name for name in names or [] if callable(METHODS[name].function) and engine == "ray"]:
            raise InputError(
                f"method {ours[0]!r} was registered in this process, and the workers of engine='ray' do not know it. Use "
                "engine='local'."
            )
        if names is None:
            names = [] if given else paper_methods(loaded)
        check_place_of_relevance(loaded, at)
        chosen_methods = configured(names, at, rules)
        samples_of = tokenized_set(directory, tokenized, loaded, tokenizer)
        chosen = select(_with_relevance(samples_of.samples, given, relevances), limit, seed)
        if batch_tokens is None:
            batch_tokens = default_batch_tokens(device)
        waste = allowed_waste(loaded, task_of(loaded))
        parts = plan(chosen, batch_tokens, waste, partial(longest_alike, loaded))
        facts = {**model_facts(loaded), "device": device, "tokenizer": samples_of.manifest["tokenizer"]["model"]}
        own = manifest_entries(chosen_methods)
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
                **changes_of_digits(compile),
                **({"rules": rules} if rules is not None else {}),
                **({"metrics": list(measures)} if measures else {}),
            },
            "plan": {"samples": len(chosen), "parts": len(parts), "selection": _digest(s.sample_id for s in chosen)},
            "versions": versions(),
            **own,
        }
        check_own_methods(Path(out), chosen_methods, own)
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
            compute = _here(this, runner, BatchExplainer(loaded, of_run, proven=proven, metrics=measures))
        else:
            job = job_for(cluster, model, loading, loaded, chosen_methods, given, execution, measures, proven=proven)
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


def _here(this: Run, runner: PassRunner, explain: BatchExplainer) -> _Compute:
    """In this process, part by part. Records of a batch are made and written while a GPU is at the next one."""

    def compute(parts: dict[int, Part], bar: Any) -> None:
        waiting: list[tuple[int, list[Callable[[], list[Record]]]]] = []  # parts whose passes are done

        def write_waiting() -> None:
            while waiting:
                number, batches = waiting.pop(0)
                write_part(this, number, [record for records in batches for record in records()])

        try:
            for number, part in parts.items():
                batches = []
                for batch in part:
                    with runner.meanwhile(write_waiting):
                        batches.append(explain.explained(batch))
                    bar.update(len(batch))
                    if failures := sum(explain.failed.values()):
                        bar.set_postfix(failed=failures, refresh=False)
                waiting.append((number, batches))
        finally:
            write_waiting()

    return compute


def _there(this: Run, cluster: Cluster, job: Job, table: Any) -> _Compute:
    """By the workers of a cluster, in whatever order they finish."""

    def compute(parts: dict[int, Part], bar: Any) -> None:
        failures = 0
        for done in compute_parts(cluster, job, parts, table):
            write_part_bytes(this, done.number, done.content)
            bar.update(done.samples)
            if failures := failures + done.failed:
                bar.set_postfix(failed=failures, refresh=False)

    return compute


# The run's samples, and its identity


def _with_relevance(
    samples: Sequence[TokenizedSample], given: ExternalRelevances, path: str | Path | None
) -> Sequence[TokenizedSample]:
    """The samples that a file of relevances explains; all if there is none."""
    if not given:
        return samples
    kept = check_relevances(given, samples, path or "")
    if len(kept) < len(samples):
        logger.warning("%d of %d samples have no relevance in %s", len(samples) - len(kept), len(samples), path)
    return [samples[n] for n in kept]


def _benchmark_facts(benchmark: Benchmark, tokenized: TokenizedSet) -> dict[str, Any]:
    origin = benchmark.manifest["ground_truth"]
    task, truth = task_and_truth(benchmark.manifest)
    return {
        "source": benchmark.manifest["source"]["name"],
        # The file that its authors published, if it is one.
        "published": (benchmark.counts["published"] or {}).get("title"),
        "ground_truth": truth,
        "parser": origin.get("parser"),
        **({"task": task} if task else {}),  # subject-verb agreement does not say
        "tokenized": tokenized.name,
        "input": tokenized.input,
        "tokenizer": tokenized.manifest["tokenizer"]["sha256"],
        "sentences": tokenized.manifest["benchmark"],
        "samples": sha256(tokenized.path / "samples.parquet"),
    }


def _digest(values: Any) -> str:
    return hashlib.sha256(" ".join(map(str, values)).encode()).hexdigest()

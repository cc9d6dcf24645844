"""Table 2 of the paper from end to end: benchmark, six models, the paper's methods, and the comparison.

    OUTPUT/sva                 the benchmark, unless another one is given
    OUTPUT/runs/MODEL          one run of ``lrpx evaluate`` per model, in the dtype that the paper used
    OUTPUT/records/MODEL       the same, condensed: what can be handed in
    OUTPUT/comparison.md       our figures, the paper's, differences in standard errors; of all models evaluated here so far
    OUTPUT/report.html         the report of ``lrpx report --compare paper``

Every step goes on where it was stopped. A model that cannot be had is told, and the others are evaluated all the same. ``plan``
says what would be done and what is missing, and loads nothing.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..benchmark.folder import load_benchmark
from ..errors import InputError, LrpxError, nearest
from ..evaluation.condensed import load_condensed
from ..evaluation.packing import pack
from ..evaluation.records import open_run
from ..files import check_above, write_text
from .against_paper import EvaluatedModel, comparison, parameter_count
from .already_there import LGD, check_benchmark_there, run_differences
from .paper import MODELS, SET_UP, PaperModel, twin

logger = logging.getLogger("lrpx")

LGD_SIZE = 8_900_000  # bytes of lgd_dataset.tsv, about
LENGTHS = {"causal": 11, "masked": 30}  # tokens per sample, on average (App. B)


class Wanted(NamedTuple):
    """One model to evaluate: the paper's, and where it is loaded from."""

    paper: PaperModel
    source: str


class Reproduced(NamedTuple):
    """What became of it: the file with the comparison, and model -> why it could not be evaluated."""

    comparison: Path
    missing: dict[str, str]


def wanted_models(names: Sequence[str] | None) -> list[Wanted]:
    """The paper's models, all or those named: ``"gpt2"``, or ``"gpt2=path/or/name"`` for another place to load it from.

    Raises:
        InputError: A name that is none of the paper's, or one that is named twice.
    """
    if not names:
        return [Wanted(model, model.hub) for model in MODELS]
    found: list[Wanted] = []
    for given in (part for name in names for part in name.split(",") if part):
        name, equals, source = given.partition("=")
        model = twin(name)
        if model is None or (equals and not source):
            known = [model.hub.rsplit("/", 1)[-1] for model in MODELS]
            raise InputError(f"models={given!r}: give a model of the paper, or NAME=PATH. {nearest(name, known)}")
        if model in [wanted.paper for wanted in found]:
            raise InputError(f"models={given!r}: {model.name} is named twice.")
        found.append(Wanted(model, source or model.hub))
    return found


def reproduce(
    output: str | Path,
    *,
    models: Sequence[str] | None = None,
    benchmark: str | Path | None = None,
    source: str | Path | None = None,
    parser: str | None = None,
    samples: int | None = None,
    dtype: str | None = None,
    **options: Any,
) -> Reproduced:
    """Evaluate the paper's methods on its models, and compare.

    Args:
        output: A folder for everything; the same call goes on where it was stopped.
        models: See ``wanted_models``.
        benchmark: A benchmark folder. Default: one is built in ``output``.
        source: ``lgd_dataset.tsv``, to build it from. Default: it is downloaded.
        parser: spaCy pipeline that finds the subjects. Default: the paper's.
        samples: Evaluate so many of each model's samples. Default: all.
        dtype: Default: the paper's for each model.
        **options: For ``evaluate``: ``device``, ``device_map``, ``batch_tokens``, ``fast``, ``compile``, ``progress``.

    Raises:
        InputError: A name, ``dtype`` or device is unknown, ``samples`` or ``batch_tokens`` is no whole number from 1, the
            benchmark cannot be made, or ``output`` holds another one.
        ImportError: pyarrow is not installed, or spaCy where it is needed.
    """
    from ..evaluation.run import evaluate

    _check_counts(samples, options.get("batch_tokens"))
    _check_places(dtype, options.get("device"), options.get("device_map"))
    wanted, output = wanted_models(models), Path(output)
    check_above(output / "sva")
    sva = Path(benchmark) if benchmark is not None else _built(output, source, parser or SET_UP["parser"])
    load_benchmark(sva)
    done, earlier = list[EvaluatedModel](), _earlier(output, wanted)
    missing: dict[str, str] = {}
    for model, place in wanted:
        folder = _folder(model)
        logger.info("%s from %s", model.name, place)
        try:
            if other := _another_architecture(model, place):
                raise InputError(f"{other}.")
            methods, kind = list(model.scores), dtype or model.dtype
            run = evaluate(sva, place, methods, output / "runs" / folder, limit=samples, dtype=kind, **options)
            done.append(EvaluatedModel(model, place, run, pack(run, output / "records" / folder)))
            for difference in done[-1].differences:
                logger.warning("%s from %s is another model than the paper's: %s", model.name, place, difference)
        except (LrpxError, OSError) as error:
            logger.warning("%s is left out: %s", model.name, error)
            missing[model.name] = str(error)
            continue
        write_text(output / "comparison.md", comparison([*done, *earlier], missing))
    if done or not (output / "comparison.md").exists():
        write_text(output / "comparison.md", comparison([*done, *earlier], missing))
    if done:
        from . import write

        write([one.run.path for one in [*done, *earlier]], compare="paper", output=output / "report.html")
    return Reproduced(output / "comparison.md", missing)


def _earlier(output: Path, wanted: Sequence[Wanted]) -> list[EvaluatedModel]:
    """Other models that were evaluated in ``output`` before."""
    found = []
    for model in MODELS:
        records = output / "records" / _folder(model)
        if model in [one.paper for one in wanted] or not (records / "manifest.json").exists():
            continue
        try:
            run = open_run(output / "runs" / _folder(model))
            found.append(EvaluatedModel(model, run.manifest["model"]["name"], run, load_condensed(records)))
        except InputError as error:
            logger.warning("%s, evaluated before, is left out: %s", model.name, error)
    return found


def _check_counts(samples: int | None, batch_tokens: int | None) -> None:
    from ..evaluation.asked import check_counts

    check_counts(samples=samples, batch_tokens=batch_tokens)


def _check_places(dtype: str | None, device: Any, device_map: Any = None) -> None:
    """Refuse at once what no model could be loaded with."""
    from ..models.options import parse_device, parse_dtype, parse_places

    parse_dtype(dtype)
    parse_device(device) if device_map is None else parse_places(device, device_map)


def _folder(model: PaperModel) -> str:
    return model.hub.rsplit("/", 1)[-1]


def _built(output: Path, source: str | Path | None, parser: str) -> Path:
    """The benchmark in ``output``."""
    from ..benchmark import build
    from ..benchmark.download import fetch

    if (output / "sva" / "counts.json").exists():
        check_benchmark_there(output / "sva", source, parser)
        return output / "sva"
    output.mkdir(parents=True, exist_ok=True)
    build(fetch(LGD, output) if source is None else Path(source), output / "sva", parser=parser)
    return output / "sva"


# The plan


class PlanStep(NamedTuple):
    """One line of the plan: what is done, what is missing for it, bytes to download, and seconds to compute if known."""

    what: str
    missing: str
    bytes: int
    seconds: float | None


def plan(
    output: str | Path,
    *,
    models: Sequence[str] | None = None,
    benchmark: str | Path | None = None,
    source: str | Path | None = None,
    parser: str | None = None,
    samples: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    compile: bool = False,
    rate: Callable[[str, str | None], float] | None = None,
) -> list[PlanStep]:
    """What ``reproduce`` would do with the same arguments, without loading or downloading anything.

    Args:
        output: As ``reproduce``, like the others.
        models: As there.
        benchmark: As there.
        source: As there.
        parser: As there.
        samples: As there.
        dtype: As there.
        device: As there.
        batch_tokens: As there.
        compile: As there.
        rate: Floating-point operations per second for a dtype and device. Default: measured with a product of two matrices.

    Raises:
        InputError: A name, ``dtype`` or ``device`` is unknown, ``samples`` or ``batch_tokens`` is no whole number from 1,
            or ``output`` holds another benchmark.
    """
    _check_counts(samples, batch_tokens)
    _check_places(dtype, device)
    output = Path(output)
    check_above(output / "sva")
    steps = [_plan_benchmark(output, benchmark, source, parser or SET_UP["parser"])]
    for model, place in wanted_models(models):
        run = output / "runs" / _folder(model)
        kind = dtype or model.dtype
        other = run_differences(run, place, samples, kind, device, batch_tokens=batch_tokens, compile=compile)
        steps.append(_plan_model(model, place, samples, kind, device, rate or _rate, run, other))
    free = shutil.disk_usage(next(p for p in [output.absolute(), *output.absolute().parents] if p.exists())).free
    needed = sum(step.bytes for step in steps)
    if needed > free:
        steps.append(PlanStep("space on the disk", f"about {_gb(needed)} are needed, {_gb(free)} are free", 0, None))
    return steps


def _plan_benchmark(output: Path, benchmark: str | Path | None, source: str | Path | None, parser: str) -> PlanStep:
    from importlib.util import find_spec

    if benchmark is not None:
        there = (Path(benchmark) / "counts.json").exists()
        return PlanStep(f"the benchmark {benchmark}", "" if there else "it is not there, or not finished", 0, None)
    if (output / "sva" / "counts.json").exists():
        check_benchmark_there(output / "sva", source, parser)
        return PlanStep(f"the benchmark {output / 'sva'}: finished already", "", 0, None)
    lacking = [f"the package {name} is not installed" for name in ("spacy", "pyarrow") if find_spec(name) is None]
    if not lacking and find_spec(parser) is None and not Path(parser).exists():
        lacking = [f"the pipeline {parser} is not installed: python -m spacy download {parser}"]
    if source is not None and not Path(source).exists():
        lacking.append(f"{source} does not exist")
    from_ = "lgd_dataset.tsv, downloaded" if source is None else str(source)
    size = LGD_SIZE if source is None and not (output / "lgd_dataset.tsv").exists() else 0
    return PlanStep(f"build the benchmark from {from_}, subjects by {parser}", "; ".join(lacking), size, None)


def _plan_model(
    model: PaperModel,
    place: str,
    samples: int | None,
    dtype: str,
    device: str | None,
    rate: Callable[[str, str | None], float],
    run: Path,
    other: list[str],
) -> PlanStep:
    count = min(samples or model.samples, model.samples)
    what = f"{model.name} from {place}: {count:,} samples, {', '.join(model.scores)}, {dtype}"
    if other:
        return PlanStep(what, f"{run} holds another run ({'; '.join(other)}): give another --output", 0, None)
    if (run / "counts.json").exists():
        return PlanStep(f"{what}: finished already", "", 0, None)
    size = parameter_count(model)
    kind = "masked" if "bert" in model.hub else "causal"
    passes = len(model.scores) - 1  # both gradient methods come from one
    seconds = 6.0 * size * count * LENGTHS[kind] * passes / rate(dtype, device)
    if Path(place).is_absolute() and not Path(place).exists():  # no name on the Hub
        return PlanStep(what, f"{place} does not exist", 0, seconds)
    if Path(place).exists() or _cached(place):
        return PlanStep(what, _another_architecture(model, place), 0, seconds)
    lacking = (
        "" if not _is_gated(place) or _token() else "it is gated on the Hub: ask for access there, and `hf auth login`"
    )
    return PlanStep(what, lacking, model.download, seconds)


def _another_architecture(model: PaperModel, place: str) -> str:
    """Why what is at ``place`` cannot be the paper's model, or nothing if it can, or if its configuration is not there."""
    try:
        file = Path(place) / "config.json" if Path(place).exists() else _cached(place)
        there = json.loads(Path(file).read_text(encoding="utf-8")).get("model_type") if file else None
    except (OSError, ValueError, AttributeError):
        return ""  # loading it says what is wrong
    expected = next(kind for kind in ("bert", "gpt2", "llama") if kind in model.hub.lower())
    if there in (None, expected):
        return ""
    return f"{place} is of the architecture {there}, and {model.name} is {expected}: give another place"


def _is_gated(place: str) -> bool:
    return place.startswith("meta-llama/")


def _token() -> bool:
    import huggingface_hub

    return huggingface_hub.get_token() is not None


def _cached(place: str) -> str:
    """Where the configuration of a model of the Hub was downloaded to, or nothing."""
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(place, "config.json")
    return found if isinstance(found, str) else ""


def _rate(dtype: str, device: str | None) -> float:
    """A third of what a product of two matrices reaches: models are slower than that."""
    from ..evaluation.speed import products_per_second

    return products_per_second(dtype, device) / 3


def _gb(size: float) -> str:
    return f"{size / 1e6:.0f} MB" if 0 < size < 1e8 else f"{size / 1e9:.1f} GB"


def plan_text(steps: Sequence[PlanStep]) -> str:
    """The plan, line by line, with sums."""
    lines = []
    for n, step in enumerate(steps, 1):
        parts = [f"download about {_gb(step.bytes)}"] if step.bytes else []
        parts += [f"about {_duration(step.seconds)}"] if step.seconds is not None else []
        lines.append(f"{n}. {step.what}" + (f" ({', '.join(parts)})" if parts else ""))
        lines += [f"   MISSING: {step.missing}"] if step.missing else []
    total = sum(step.seconds or 0 for step in steps)
    size = _gb(sum(step.bytes for step in steps))
    lines.append(
        f"In all: about {size} to download, about {_duration(total)} of computing for the models, "
        f"estimated from a product of matrices on this device. {sum(bool(step.missing) for step in steps)} missing."
    )
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(1, round(seconds))} s"

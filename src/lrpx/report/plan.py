"""What ``lrpx reproduce`` would do, what is missing for it, and how long it would take: ``lrpx reproduce --plan``.

Nothing is loaded or downloaded. Times are estimated from a product of two matrices on the device.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .against_paper import parameter_count
from .already_there import check_benchmark_there, run_differences
from .paper import SET_UP, PaperModel
from .wanted_models import another_architecture, cached, check_asked, folder_of, wanted_models

LGD_SIZE = 8_900_000  # bytes of lgd_dataset.tsv, about
LENGTHS = {"causal": 11, "masked": 30}  # tokens per sample, on average (App. B)


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
    output = Path(output)
    check_asked(output, samples=samples, batch_tokens=batch_tokens, dtype=dtype, device=device)
    steps = [_plan_benchmark(output, benchmark, source, parser or SET_UP["parser"])]
    for model, place in wanted_models(models):
        run = output / "runs" / folder_of(model)
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
        return PlanStep(what, f"{run} holds another run ({'; '.join(other)}): give another output folder", 0, None)
    if (run / "counts.json").exists():
        return PlanStep(f"{what}: finished already", "", 0, None)
    size = parameter_count(model)
    kind = "masked" if "bert" in model.hub else "causal"
    passes = len(model.scores) - 1  # both gradient methods come from one
    seconds = 6.0 * size * count * LENGTHS[kind] * passes / rate(dtype, device)
    if Path(place).is_absolute() and not Path(place).exists():  # no name on the Hub
        return PlanStep(what, f"{place} does not exist", 0, seconds)
    if Path(place).exists() or cached(place):
        return PlanStep(what, another_architecture(model, place), 0, seconds)
    lacking = (
        "" if not _is_gated(place) or _token() else "it is gated on the Hub: ask for access there, and `hf auth login`"
    )
    return PlanStep(what, lacking, model.download, seconds)


def _is_gated(place: str) -> bool:
    return place.startswith("meta-llama/")


def _token() -> bool:
    import huggingface_hub

    return huggingface_hub.get_token() is not None


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

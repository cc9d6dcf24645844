"""Table 2 of the paper from end to end: benchmark, six models, the paper's methods, and the comparison.

    OUTPUT/sva                 the benchmark, unless another one is given
    OUTPUT/runs/MODEL          one run of ``lrpx evaluate`` per model, in the dtype that the paper used
    OUTPUT/records/MODEL       the same, condensed: what can be handed in
    OUTPUT/comparison.md       our figures, the paper's, differences in standard errors; of all models evaluated here so far
    OUTPUT/report.html         the report of ``lrpx report --compare paper``

Every step goes on where it was stopped. A model that cannot be had is told, and the others are evaluated all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..benchmark.folder import load_benchmark
from ..errors import InputError, LrpxError
from ..evaluation.condensed import load_condensed
from ..evaluation.packing import pack
from ..evaluation.records import open_run
from ..files import write_text
from .against_paper import EvaluatedModel, comparison
from .already_there import LGD, check_benchmark_there
from .paper import MODELS, SET_UP
from .wanted_models import Wanted, another_architecture, check_asked, folder_of, wanted_models

logger = logging.getLogger("lrpx")


class Reproduced(NamedTuple):
    """What became of it: the file with the comparison, and model -> why it could not be evaluated."""

    comparison: Path
    missing: dict[str, str]


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

    output = Path(output)
    places = {name: options.get(name) for name in ("batch_tokens", "device", "device_map")}
    check_asked(output, samples=samples, dtype=dtype, **places)
    wanted = wanted_models(models)
    sva = Path(benchmark) if benchmark is not None else _built(output, source, parser or SET_UP["parser"])
    load_benchmark(sva)
    done, earlier = list[EvaluatedModel](), _earlier(output, wanted)
    missing: dict[str, str] = {}
    for model, place in wanted:
        folder = folder_of(model)
        logger.info("%s from %s", model.name, place)
        try:
            if other := another_architecture(model, place):
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
        records = output / "records" / folder_of(model)
        if model in [one.paper for one in wanted] or not (records / "manifest.json").exists():
            continue
        try:
            run = open_run(output / "runs" / folder_of(model))
            found.append(EvaluatedModel(model, run.manifest["model"]["name"], run, load_condensed(records)))
        except InputError as error:
            logger.warning("%s, evaluated before, is left out: %s", model.name, error)
    return found


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

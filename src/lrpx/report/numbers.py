"""Every number of a report's tables, one per row: as CSV and as Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..benchmark.folder import ROLES
from ..errors import import_optional
from ..evaluation.metrics import Interval
from .results import Result

COLUMNS = ("model", "source", "method", "metric", "mean", "low", "high", "std", "samples", "text")
_FACTS = ("parameters", "layers", "heads", "width", "vocabulary", "tokenizer")


def rows(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    """The numbers of all tables, one per row, with the keys of ``COLUMNS``; ``None``: not known, or not of this kind.

    ``source`` is ``run`` or ``paper``. Besides the four metrics and measures of faithfulness, ``metric`` is
    ``subject_positive``, ``subject_negative`` and so on: shares of relevance by role; and, without a method, ``accuracy``,
    ``correct``, ``failed``, ``subject_tokens`` and so on: shares of the tokens, and what a model is: ``parameters``,
    ``layers``, ``heads``, ``width``, ``vocabulary``, and ``tokenizer``, whose name is in ``text``. The method ``chance`` is none,
    but relevance drawn by chance.
    """
    for r in results:
        for row in _of(r):
            yield {**dict.fromkeys(COLUMNS), "model": r.label, "source": "paper" if r.of_paper else "run", **row}


def _of(r: Result) -> Iterator[dict[str, Any]]:
    def interval(found: Interval) -> dict[str, float]:
        return found._asdict() if found.known else {"mean": found.mean}

    yield {"metric": "accuracy", **interval(r.accuracy), "samples": r.samples}
    for name in ("correct", "failed") if not r.of_paper else ():
        yield {"metric": name, "mean": getattr(r, name), "samples": r.samples}
    for name in _FACTS:
        fact = r.facts.get(name)
        if fact is not None:
            yield {"metric": name, **({"text": fact} if isinstance(fact, str) else {"mean": fact})}
    for method, scored in r.methods.items():
        size = None if r.of_paper else scored.samples
        for metric, found in (scored.scores | scored.measures).items():
            yield {"method": method, "metric": metric, **interval(found), "samples": size}
        for role, shares in scored.roles.items():
            for sign, share in zip(("positive", "negative"), shares, strict=True):
                yield {"method": method, "metric": f"{role}_{sign}", "mean": share, "samples": size}
    for metric, (mean, std) in r.random.items():
        yield {"method": "chance", "metric": metric, "mean": mean, "std": std, "samples": r.samples}
    for role in ROLES if r.token_roles else ():
        yield {"metric": f"{role}_tokens", "mean": r.token_roles[role], "samples": r.correct}


def comma_separated(results: Sequence[Result]) -> str:
    """The numbers as CSV, with a header; what is not known is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(results))
    return file.getvalue()


def write_parquet(results: Sequence[Result], path: Path) -> None:
    """The numbers as a Parquet file."""
    pa, parquet = import_optional("pyarrow", "A report"), import_optional("pyarrow.parquet", "A report")
    numbers = dict.fromkeys(("mean", "low", "high", "std"), pa.float64()) | {"samples": pa.int64()}
    schema = pa.schema([(name, numbers.get(name, pa.string())) for name in COLUMNS])
    found = [{**row, "mean": None if row["mean"] is None else float(row["mean"])} for row in rows(results)]
    parquet.write_table(pa.Table.from_pylist(found, schema=schema), path)

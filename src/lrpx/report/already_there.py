"""What the output folder of ``lrpx reproduce`` already holds: is it what is asked for now?

A benchmark is known by its source and its parser; a run by its model's name, how many samples were asked for, how they are
computed, and the versions of the packages. Both are read from the manifests; nothing is loaded. Weights and samples are compared
when a run goes on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..benchmark.folder import load_benchmark
from ..benchmark.storage import read_manifest
from ..errors import InputError
from ..evaluation.records import SCHEMA
from ..files import sha256
from .paper import SET_UP

LGD = "lgd"  # name of the paper's source among the published files


def check_benchmark_there(folder: Path, source: str | Path | None, parser: str) -> None:
    """Refuse a finished benchmark that was built from another source, or with another parser.

    Args:
        folder: A finished benchmark.
        source: A file, or ``None`` for the published one.
        parser: Name or folder of a spaCy pipeline.

    Raises:
        InputError: It is another benchmark; the error says what is there.
    """
    there = load_benchmark(folder)
    origin, how = there.manifest["source"], there.manifest["ground_truth"]
    own = how["parser"]["name"] if "parser" in how else f"the {next(iter(how))} {next(iter(how.values()))['name']}"
    if source is None:
        same = (there.counts.get("published") or {}).get("name") == LGD
    elif not Path(source).is_file():
        raise InputError(
            f"{source} is not a file. Give the source that {folder} was built from, or another output folder."
        )
    else:
        same = origin["sha256"] == sha256(Path(source))
    if same and own == _pipeline_name(parser):
        return
    asked = SET_UP["source"] if source is None else source
    raise InputError(
        f"{folder} holds a benchmark built from {origin['name']}{'' if same else ' (another file)'}, subjects by {own}, and "
        f"{asked} with {parser} is asked for.",
        python=f"Give another output, or benchmark={str(folder)!r} to use it as it is.",
        command=f"Give another --output, or --benchmark {folder} to use it as it is.",
    )


def _pipeline_name(parser: str) -> str:
    """The name that a benchmark's manifest has for a pipeline that is given by name or folder."""
    file = Path(parser) / "meta.json"
    if not file.is_file():
        return parser
    meta = json.loads(file.read_text(encoding="utf-8"))
    return f"{meta.get('lang', '')}_{meta.get('name', '')}"


def run_differences(
    folder: Path,
    place: str,
    samples: int | None,
    dtype: str,
    device: str | None,
    *,
    batch_tokens: int | None = None,
    compile: bool = False,
) -> list[str]:
    """In what the run in a folder differs from the one that is asked for; empty if there is none, or it is the same.

    Args:
        folder: Of a run, finished or not.
        place: Where the model is loaded from.
        samples: How many are asked for, ``None`` for all.
        dtype: As ``lrpx.load`` takes it; ``"auto"`` is not compared.
        device: As ``lrpx.load`` takes it.
        batch_tokens: As ``evaluate`` takes it.
        compile: Likewise.

    Raises:
        InputError: The folder holds something else, or there is no such dtype or device.
    """
    if not (folder / "manifest.json").is_file():
        return []
    from ..evaluation.asked import changes_of_digits, default_batch_tokens
    from ..models.options import parse_device, parse_dtype
    from ..models.provenance import versions

    manifest = read_manifest(folder, "run", SCHEMA)
    model, options, digits = manifest["model"], manifest["options"], changes_of_digits(compile)
    where = parse_device(device).type
    wanted = str(parse_dtype(dtype)).removeprefix("torch.")
    pairs: list[tuple[str, Any, Any]] = [
        ("model", model["name"], Path(place).resolve().name if Path(place).is_dir() else place),
        ("samples", options["limit"] or "all", samples or "all"),
        ("dtype", model["dtype"], model["dtype"] if wanted == "auto" else wanted),
        ("device", model["device"], where),
        ("batch tokens", options["batch_tokens"], batch_tokens or default_batch_tokens(where)),
        *((name, options.get(name, False), digits.get(name, False)) for name in ("compile", "tf32")),
        *((name, manifest["versions"].get(name), version) for name, version in versions().items()),
    ]
    return [f"{name} {there}, not {now}" for name, there, now in pairs if there != now]

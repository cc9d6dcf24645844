"""The paper's models that ``lrpx reproduce`` is asked for, and where each is loaded from: nothing is loaded here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, nearest
from ..files import check_above
from .paper import MODELS, PaperModel, twin


class Wanted(NamedTuple):
    """One model to evaluate: the paper's, and where it is loaded from."""

    paper: PaperModel
    source: str


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


def check_asked(
    output: Path,
    *,
    samples: int | None,
    batch_tokens: int | None,
    dtype: str | None,
    device: Any,
    device_map: Any = None,
) -> None:
    """Refuse at once what nothing could be evaluated with.

    Raises:
        InputError: A number that is none, a dtype or device that there is not, or ``output`` lies below a file.
    """
    from ..evaluation.asked import check_counts
    from ..models.options import parse_device, parse_dtype, parse_places

    check_counts(samples=samples, batch_tokens=batch_tokens)
    parse_dtype(dtype)
    parse_device(device) if device_map is None else parse_places(device, device_map)
    check_above(output / "sva")


def folder_of(model: PaperModel) -> str:
    """The name of its folders in the output."""
    return model.hub.rsplit("/", 1)[-1]


def another_architecture(model: PaperModel, place: str) -> str:
    """Why what is at ``place`` cannot be the paper's model, or nothing if it can, or if its configuration is not there."""
    try:
        file = Path(place) / "config.json" if Path(place).exists() else cached(place)
        there = json.loads(Path(file).read_text(encoding="utf-8")).get("model_type") if file else None
    except (OSError, ValueError, AttributeError):
        return ""  # loading it says what is wrong
    expected = next(kind for kind in ("bert", "gpt2", "llama") if kind in model.hub.lower())
    if there in (None, expected):
        return ""
    return f"{place} is of the architecture {there}, and {model.name} is {expected}: give another place"


def cached(place: str) -> str:
    """Where the configuration of a model of the Hub was downloaded to, or nothing."""
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(place, "config.json")
    return found if isinstance(found, str) else ""

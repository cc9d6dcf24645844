"""What an evaluation is asked for: checked before anything is computed, and completed."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..benchmark.storage import check_place
from ..errors import InputError, UnsupportedModelError, nearest
from ..methods import METHODS, Method, get_method
from ..methods.alti.families import find_family
from ..methods.options import methods_with_options
from ..methods.rule_names import linear_rule
from ..models.loading import load
from ..models.precision import is_exact
from ..models.reader import tokenizer_of
from ..models.usable import usable_model
from ..passes.hidden_states import resolve_at
from .ray_cluster import Cluster, connect
from .records import open_run

logger = logging.getLogger("lrpx")

PAPER_METHODS = ("alti-logit", "lrp", "attnlrp", "gradient", "gradient-x-input")


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


def check_place_of_relevance(model: PreTrainedModel, at: str) -> None:
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


def in_order_of_the_table(methods: Sequence[str]) -> list[str]:
    """The methods, each once, in the order of the table of methods, so that the order they are given in does not matter."""
    if isinstance(methods, str) or not methods:
        raise InputError(f"methods={methods!r}: give a list of names, such as ['lrp', 'attnlrp'].")
    for name in methods:
        get_method(name)
    return [name for name in METHODS if name in methods]


def paper_methods(model: PreTrainedModel) -> list[str]:
    """The methods of the paper's Table 2 that can explain the model."""
    names = list(PAPER_METHODS)
    try:
        find_family(model)
    except UnsupportedModelError as error:
        logger.warning("alti-logit is left out: %s", error)
        names.remove("alti-logit")
    return in_order_of_the_table(names)


def check_run_folder(out: Path) -> None:
    """Refuse a folder that holds something else before anything is loaded or computed."""
    check_place(out, what="run")
    if (out / "manifest.json").exists():
        open_run(out)


def check_counts(**numbers: int | None) -> None:
    """Refuse what is no whole number from 1."""
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{name}={value!r}: give a whole number, 1 or more.")


def default_batch_tokens(device: str) -> int:
    """Tokens per batch on a kind of device, where none are asked for."""
    return 4096 if device == "cpu" else 16384


def changes_of_digits(compile: bool) -> dict[str, bool]:
    """What a run's manifest says of how its passes are run, since it changes digits: nothing, usually."""
    return {name: True for name, on in (("compile", compile), ("tf32", not is_exact())) if on}


def check_engine(engine: str, model: Any, **options: Any) -> None:
    """Refuse an engine that there is not, or options and models that it cannot take."""
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


def computing_place(
    engine: str, address: str | None, workers: int | None, device: Any
) -> AbstractContextManager[Cluster | None]:
    """Where to compute; gives ``None`` for this process."""
    if engine == "local":
        return nullcontext()
    return connect(address, workers, device)


def loaded_model(model: Any, tokenizer: Any, loading: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    """The model and what reads its texts, loaded if it is a name."""
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

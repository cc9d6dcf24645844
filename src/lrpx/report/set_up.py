"""In what the set-up of runs differs from that of Arras et al. (2025): section "Evaluation w.r.t. Ground Truth", and appendices.

What is written down in a run's manifest is compared; what lrpx does in another way whatever the set-up is in
``docs/differences_from_the_paper.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..benchmark.kinds import kind_in_records
from ..evaluation.records import Run
from .paper import SET_UP, twin


def differences(runs: Sequence[Run], samples: int) -> list[str]:
    """One sentence with every difference, or none if there is no difference.

    Args:
        runs: Of one model, on the same samples.
        samples: How many samples were predicted.
    """
    found = dict.fromkeys(difference for run in runs for difference in _differences(run.manifest, samples))
    return [f"Not as in the paper: {'; '.join(found)}."] if found else []


def choices(runs: Sequence[Run]) -> list[str]:
    """One sentence with every choice that changes the numbers and is not the default of ``lrpx evaluate``, or none."""
    found = dict.fromkeys(choice for run in runs for choice in _choices(run.manifest))
    return [f"Computed with {'; '.join(found)}."] if found else []


def _choices(manifest: dict[str, Any]) -> Iterator[str]:
    options, dtype = manifest["options"], manifest["model"]["dtype"]
    if options["at"] != "input":
        yield f"relevance taken at {options['at']}"
    if rules := options.get("rules"):
        yield f"{rules} for layers with weights"
    if dtype != "float32":
        yield f"the model in {dtype}"
    if options.get("tf32"):
        yield "TF32 matrix products"


def _differences(manifest: dict[str, Any], samples: int) -> Iterator[str]:
    model, benchmark, options = manifest["model"], manifest["benchmark"], manifest["options"]
    own, versions = twin(model["name"]), manifest["versions"]
    dtype = own.dtype if own else SET_UP["dtype"]
    if model["dtype"] != dtype:
        yield f"computed in {model['dtype']} (paper: {dtype})"
    for option, told in (("tf32", "TF32 matrix products"), ("compile", "compiled passes")):
        if options.get(option):
            yield told
    if options["at"] != "input":
        yield f"relevance taken at the {options['at']} (paper: at layer 0)"
    if rules := options.get("rules"):
        yield f"{rules} for layers with weights (paper: LRP-epsilon with epsilon = 0)"
    if own and samples != own.samples:
        yield f"{samples:,} samples (paper: {own.samples:,})"
    elif options["limit"] and not own:
        yield f"{samples:,} samples, chosen by a limit (paper: all)"
    if benchmark["published"] != SET_UP["source"]:
        yield f"sentences of {benchmark['source']} (paper: {SET_UP['source']})"
    theirs = f"{SET_UP['parser']}, spaCy {SET_UP['spacy']}"
    parser = benchmark["parser"]
    if benchmark.get("task"):
        yield f"ground truth: the {kind_in_records([manifest]).truth} (paper: the subject)"
    elif parser is None:
        yield f"subjects from {benchmark['ground_truth']} (paper: by {theirs})"
    elif (parser["name"], parser["spacy"]) != (SET_UP["parser"], SET_UP["spacy"]):
        yield f"subjects by {parser['name']} {parser['version']}, spaCy {parser['spacy']} (paper: {theirs})"
    for name in ("torch", "transformers"):
        if versions[name].split("+")[0] != SET_UP[name]:
            yield f"{name} {versions[name]} (paper: {SET_UP[name]})"

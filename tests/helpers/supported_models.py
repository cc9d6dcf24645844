"""``docs/supported_models.md``, from the lists that the sweeps over model types run over.

    python tests/helpers/supported_models.py      # writes the page; tests/test_supported_models.py compares it

A model type stands in the page as explained because a sweep builds a tiny random model of it and checks it, and as refused
because a sweep sees it refused by name.
"""

import importlib.util
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import transformers

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "supported_models.md"

_NO_CAUSE = "see the sweep"


@dataclass(frozen=True)
class Sweep:
    """What a sweep found for one task.

    Attributes:
        column: The header of the task's column.
        task: What is explained, and with what.
        explained: Model types.
        refused: Model type -> why.
        test: The file of the sweep.
    """

    column: str
    task: str
    explained: frozenset[str]
    refused: Mapping[str, str]
    test: str


def sweeps() -> list[Sweep]:
    """All of them, in the order of the columns."""
    import swept
    import tiny_heads

    from lrpx.models.refused import REFUSED

    def why(family: str) -> str:
        kind = _type(family)
        return REFUSED.get(
            kind, "it reads audio codes from several codebooks, not text" if family in swept.MUSIC else _NO_CAUSE
        )

    found = []
    for kind, column, task in (
        ("causal", "next token", "causal language models: `explainer(text)`, `explainer.generate(prompt)`"),
        ("masked", "masked token", "masked language models: `explainer(text_with_mask)`"),
    ):
        own = [f"{kind}:{_type(f)}" for f in swept.ENCODER_DECODER] if kind == "masked" else []
        explained = [f for f in swept.EXPLAINED if f.startswith(kind)]
        refused = {_type(f): why(f) for f in swept.REFUSES if f.startswith(kind)}
        refused |= {_type(f): "an encoder-decoder model, explained as such" for f in own}
        found.append(Sweep(column, task, _types(explained), refused, "tests/test_sweep.py"))
    pairs = _test_module("tasks/test_sweep_text2text.py")
    refused = {_type(f): REFUSED.get(_type(f), _NO_CAUSE) for f in pairs.REFUSES}
    refused |= dict.fromkeys(
        pairs.WITHOUT_DECODER, "it has no decoder of its own: it goes on from a text that sound stands in"
    )
    refused = {kind: reason for kind, reason in refused.items() if f"text2text:{kind}" in pairs.TEXT}
    task = "encoder-decoder models: `explainer(source, target=...)`, `explainer.generate(source)`"
    found.append(
        Sweep("source to target", task, _types(pairs.EXPLAINED), refused, "tests/tasks/test_sweep_text2text.py")
    )
    sound = _test_module("tasks/test_sound.py")
    refused = dict(sound.REFUSES)
    refused |= dict.fromkeys(
        sound.WITHOUT_DECODER, "it has no decoder of its own: it goes on from a text that sound stands in"
    )
    refused |= dict.fromkeys(sound.NOT_BUILT, "it is not built small, so nothing is known of it")
    refused = {kind: reason for kind, reason in refused.items() if kind in sound.KINDS}
    task = "encoder-decoder models that read sound: `explainer(features, target=...)`, `explainer.generate(features)`"
    found.append(Sweep("sound to text", task, frozenset(sound.EXPLAINED), refused, "tests/tasks/test_sound.py"))
    images = _test_module("tasks/test_sweep_image_text.py")
    refused = {kind: reason.rpartition("supported: ")[2] for kind, reason in images.REFUSED.items()}
    task = "images and text together: `explainer(text, images=[...])`"
    found.append(
        Sweep("images and text", task, frozenset(images.TRIED), refused, "tests/tasks/test_sweep_image_text.py")
    )
    classifiers = _test_module("tasks/test_sweep_image.py")
    refused = {_type(f): REFUSED[_type(f)] for f in classifiers.REFUSES}
    task = "image-classification: `explainer(image)`"
    found.append(Sweep("image", task, _types(classifiers.EXPLAINED), refused, "tests/tasks/test_sweep_image.py"))
    scores = _test_module("tasks/test_sweep_image_scores.py")
    refused = {_type(f): "it has no tower for the text" for f in scores.REFUSES}
    task = 'zero-shot-image-classification: `explainer(image, target="a cat")`'
    found.append(
        Sweep("image-text score", task, _types(scores.EXPLAINED), refused, "tests/tasks/test_sweep_image_scores.py")
    )
    words = {
        "text-classification": ("label of a text", "`explainer(text)`, `explainer(text, text_pair=...)`"),
        "token-classification": ("label of a token", "`explainer(text, position=...)`"),
        "question-answering": ("answer", "`explainer(context, question=...)`"),
        "multiple-choice": ("choice", "`explainer(prompt, choices=[...])`"),
    }
    for task, (column, call) in words.items():
        explained = [f for f in tiny_heads.EXPLAINED if f.startswith(f"{task}:")]
        refused = {_type(f): reason for f, reason in tiny_heads.REFUSES.items() if f.startswith(f"{task}:")}
        found.append(
            Sweep(column, f"{task}: {call}", _types(explained), refused, "tests/tasks/test_sweep_classification.py")
        )
    similar = _test_module("explainer/test_similarity.py")
    explained = _types(similar.SWEPT) | {kind.lower() for kind in similar.ENCODERS_OF_PAIRS}
    task = "why the embeddings of two texts are similar: `explainer.similarity(text, other)`"
    found.append(Sweep("similarity", task, explained, {}, "tests/explainer/test_similarity.py"))
    flows = _test_module("passes/test_flow_sweep.py")
    explained = [f for f in swept.EXPLAINED if f not in flows.REFUSED]
    refused = {_type(f): flows.REFUSED.get(f) or why(f) for f in (*flows.REFUSED, *swept.REFUSES)}
    task = "from token to token through the blocks of language models: `explainer.flow(text)`"
    found.append(Sweep("flow", task, _types(explained), refused, "tests/passes/test_flow_sweep.py"))
    return found


def alti_columns() -> dict[str, frozenset[str]]:
    """Header of a column -> the model types that ALTI-Logit knows there."""
    from lrpx.methods.alti.families import all_families

    known = [(family.causal, kind) for family in all_families() for kind in family.model_types]
    return {
        "next token": frozenset(kind for causal, kind in known if causal),
        "masked token": frozenset(kind for causal, kind in known if not causal),
    }


def page() -> str:
    """The page."""
    found = sweeps()
    kinds = sorted({kind for sweep in found for kind in (*sweep.explained, *sweep.refused)})
    alti = alti_columns()
    version = ".".join(transformers.__version__.split(".")[:2])
    reasons = list(dict.fromkeys(reason for sweep in found for reason in sweep.refused.values()))
    number = {reason: n for n, reason in enumerate(reasons, 1)}

    def cell(sweep: Sweep, kind: str) -> str:
        if kind in sweep.explained:
            return "yes" + " + ALTI" * (kind in alti.get(sweep.column, ()))
        return f"no ({number[sweep.refused[kind]]})" if kind in sweep.refused else ""

    lines = [
        "# Supported models",
        "",
        *_paragraph(
            f"Every model type of transformers {version} that can be built small, by task. A sweep builds a tiny random model of "
            "each and checks it; this page is written from its lists by `python tests/helpers/supported_models.py`, and a test "
            "compares the two. A model of another type is tried all the same: what has no rule is refused by name, and "
            "`lrpx check NAME` says on your machine whether the rules hold."
        ),
        "| column | what is explained | explained | refused | sweep |",
        "|---|---|---:|---:|---|",
        *(f"| {s.column} | {s.task} | {len(s.explained)} | {len(s.refused)} | `{s.test}` |" for s in found),
        "",
        *_paragraph(
            "**Methods.** *yes* stands for `lrp`, `attnlrp`, `lrp-uniform-gate`, `gradient` and `gradient-x-input`; *+ ALTI* "
            "also for `alti-logit`, `alti` and `attention-rollout`, which know a model by its family "
            "([add_a_family.md](add_a_family.md)). Models that are refused for their layers are explained by the gradient "
            "methods."
        ),
        *_paragraph(
            "**What is checked**, for each: the forward pass under the rules is the plain one, bit for bit; under LRP, relevance "
            "and what constants take add up to the value; most sweeps also compare a padded batch with single texts, and "
            "Gradient x Input with finite differences."
        ),
        f"| model type | {' | '.join(s.column for s in found)} |",
        "|---|" + "---|" * len(found),
        *(f"| `{kind}` | {' | '.join(cell(s, kind) for s in found)} |" for kind in kinds),
        "",
        "Why not:",
        "",
        *(f"{n}. {reason}" for reason, n in number.items()),
        "",
        *_outside(),
    ]
    return "\n".join(lines) + "\n"


def _outside() -> list[str]:
    """What is not tried: model types of the tables that are swept, and whole tables of transformers."""
    from auto_classes import OUTSIDE, SWEPT, left_out, tables

    known = tables()
    types: dict[str, list[str]] = {}
    for table, column in SWEPT.items():
        for kind, why in left_out(table).items():
            if kind in known.get(table, {}):
                types.setdefault(why, []).append(f"`{kind}` ({column})")
    reasons: dict[str, list[str]] = {}
    for table, why in OUTSIDE.items():
        if table in known:
            reasons.setdefault(why, []).append(f"`MODEL_FOR_{table}`")
    return [
        "**Not tried** of the tables of transformers that the sweeps are about:",
        "",
        *_list(types),
        "",
        "**Outside**: tables of transformers' auto classes that no sweep is about.",
        "",
        *_list(reasons),
    ]


def _list(reasons: Mapping[str, list[str]]) -> list[str]:
    items = (f"- {', '.join(names)}: {why}" for why, names in reasons.items())
    wrap = {"subsequent_indent": "  ", "break_on_hyphens": False, "break_long_words": False}
    return [line for item in items for line in textwrap.wrap(item, 120, **wrap)]


def _paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False), ""]


def _type(family: str) -> str:
    return family.split(":")[1]


def _types(families: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_type, families))


def _test_module(name: str):
    spec = importlib.util.spec_from_file_location(Path(name).stem, HERE.parent / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    PAGE.write_text(page(), encoding="utf-8")

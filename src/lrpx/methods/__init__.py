"""The methods by name. Each is one file with one function: ``(model, batch, **options) -> Sequence[Attribution]``.

``lrpx.explain``, the command line and the benchmark find a method by its name. ``register_method`` adds one of your own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import InputError, nearest
from ..results.explanation import MEASURES, Measures
from .method import FAMILY
from .method import Method as Method
from .method import Traits as Traits
from .own_code import code_of

_ARRAS = "Arras et al. 2025"
_BACKWARD = ("neuron, layer", "forward + backward")  # granularity and cost of what goes backwards
_GRADIENT = Traits(*_BACKWARD, False, False, True, False)
_TABLE = [
    Method(
        "lrp",
        "LRP: attention weights, gates and norm deviations are constants; activations pass relevance unchanged.",
        f"Ali et al. 2022; Eberle et al. 2023; {_ARRAS}",
        "lrp:explain",
        {"rules": "lrp", "at": ("input",), "heads": None},
        Traits(*_BACKWARD, True, True, True, True),
    ),
    Method(
        "attnlrp",
        "AttnLRP: as LRP, but relevance also flows through softmax, and products give half to each factor.",
        f"Achtibat et al. 2024; {_ARRAS}",
        "lrp:explain",
        {"rules": "attnlrp", "at": ("input",), "heads": None},
        Traits(*_BACKWARD, True, False, True, True),
    ),
    Method(
        "lrp-uniform-gate",
        "LRP with constant attention, but half to each factor of a gated MLP product.",
        f"a variant of {_ARRAS}",
        "lrp:explain",
        {"rules": "lrp-uniform-gate", "at": ("input",), "heads": None},
        Traits(*_BACKWARD, True, True, True, True, in_paper=False),
    ),
    Method(
        "gradient",
        "Norm of the gradient of the value with respect to each token (norm='l1', or 'l2' for the squared L2 norm).",
        f"Simonyan et al. 2014; Li et al. 2016; {_ARRAS}",
        "gradient:explain",
        {"norm": "l1", "at": ("input",)},
        _GRADIENT,
        measures="sensitivity",
    ),
    Method(
        "gradient-x-input",
        "Gradient times input, summed over the width.",
        f"Denil et al. 2015; Shrikumar et al. 2016; {_ARRAS}",
        "gradient:times_input",
        {"at": ("input",), "heads": None},
        _GRADIENT,
    ),
    Method(
        "alti-logit",
        "ALTI-Logit: what attention adds to the logit, carried to the input through token mixing; MLPs stay components.",
        f"Ferrando et al. 2023; {_ARRAS}",
        "alti.logit:explain",
        {"direct": False},
        Traits("token, head, layer", "2 x forward", True, True, False, True),
        check=FAMILY,
    ),
    Method(
        "alti",
        "ALTI: how much each input token is mixed into the explained position; not tied to a logit.",
        "Ferrando et al. 2022",
        "alti.logit:alti",
        measures="mixture",
        traits=Traits("token", "2 x forward", True, True, False, False, in_paper=False),
        check=FAMILY,
    ),
    Method(
        "attention-rollout",
        "Attention rollout: attention weights multiplied over the layers, half of each being the residual stream.",
        "Abnar & Zuidema 2020",
        "alti.logit:attention_rollout",
        measures="mixture",
        traits=Traits("token", "forward", None, True, False, False, in_paper=False),
        check=FAMILY,
    ),
    Method(
        "integrated-gradients",
        "The gradient averaged on the way from a baseline to the word embeddings, or pixels, times the difference of the two.",
        "Sundararajan et al. 2017",
        "averaged:integrated_gradients",
        {"steps": 32, "baseline": "mean", "at": ("embedding",)},
        Traits("token, pixel", "32 x (forward + backward)", False, False, True, True, in_paper=False),
        changes_pixels=True,
    ),
    Method(
        "smoothgrad",
        "Norm of the gradient, averaged over copies of the input with noise on the word embeddings, or pixels.",
        "Smilkov et al. 2017",
        "averaged:smoothgrad",
        {"samples": 32, "noise": 0.15, "norm": "l1", "seed": 0, "at": ("embedding",)},
        Traits("token, pixel", "32 x (forward + backward)", False, False, True, False, in_paper=False),
        measures="sensitivity",
        changes_pixels=True,
    ),
    Method(
        "occlusion",
        "What the value loses when a token's embedding, or a patch of an image, is a baseline's.",
        "Zeiler & Fergus 2014",
        "occlusion:occlusion",
        {"window": 1, "baseline": "mean", "at": ("input",)},
        Traits("token, patch", "a forward for each", None, False, True, False, in_paper=False),
        measures="scores",
        changes_pixels=True,
    ),
    Method(
        "leave-one-out",
        "What the value loses in the text without the token (causal language models, classifiers of texts, multiple choice).",
        "Li et al. 2016b",
        "occlusion:leave_one_out",
        traits=Traits("token", "a forward for each token", None, False, True, False, in_paper=False),
        measures="scores",
        check="occlusion:check_can_be_shorter",
    ),
    Method(
        "lime",
        "LIME: coefficients of a linear model of the value with random tokens hidden (by Captum).",
        "Ribeiro et al. 2016",
        "surrogate:lime",
        {"samples": 256, "baseline": "mean", "seed": 0},
        Traits("token", "256 x forward", None, False, True, False, in_paper=False),
        measures="scores",
        needs="captum",
    ),
    Method(
        "kernel-shap",
        "Kernel SHAP: Shapley values of the tokens, exact for a few of them (by Captum).",
        "Lundberg & Lee 2017",
        "surrogate:kernel_shap",
        {"samples": 256, "baseline": "mean", "seed": 0},
        Traits("token", "256 x forward", None, False, True, True, in_paper=False),
        needs="captum",
    ),
    Method(
        "random",
        "Numbers from a normal distribution: what a method has to beat.",
        "",
        "occlusion:random_scores",
        {"seed": 0},
        Traits("token", "none", None, False, False, False, in_paper=False),
        measures="scores",
    ),
]
SIGNED: tuple[Measures, ...] = ("parts", "scores")  # what can be subtracted
METHODS: dict[str, Method] = {m.name: m for m in _TABLE}
"""Every method by its name, which is what ``method=`` takes; those that you register are added."""

Function = TypeVar("Function", bound=Callable[..., Any])


def register_method(
    name: str, *, summary: str = "", source: str = "", measures: Measures = "scores", traits: Traits | None = None
) -> Callable[[Function], Function]:
    """Decorate a function, and it is a method: for ``lrpx.explain``, the benchmark, the views and, by ``--plugin``, the commands.

    The function is called with a model in eval mode and a ``Batch``, and returns an ``Attribution`` for each of its items. Its
    keyword-only parameters with defaults are the method's options. With a parameter ``runner`` it gets the ``PassRunner`` of the
    call, for ``lrpx.passes``.

    Args:
        name: As it is called.
        summary: What it computes, in one line. Default: the first line of the function's docstring.
        source: A paper.
        measures: What its numbers are; see ``Explanation``.
        traits: What it assumes, costs and gives, for ``lrpx methods --long``.

    Raises:
        InputError: Another function has the name, the function does not take what it is called with, or ``measures`` is unknown.

    Examples:
        >>> @lrpx.register_method("length", summary="Longer tokens get more.")
        ... def length(model, batch, *, power=1):
        ...     ...
    """
    if measures not in MEASURES:
        raise InputError(f"measures={measures!r} is unknown. {nearest(measures, MEASURES)}")

    def register(function: Function) -> Function:
        known = METHODS.get(name)
        if known is not None and getattr(known.function, "__qualname__", None) != function.__qualname__:
            raise InputError(f"there is a method {name!r} already. Give yours another name.")
        parameters = inspect.signature(function).parameters.values()
        first = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        ]
        named = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "runner"}
        if len(first) != 2 or inspect.Parameter.empty in named.values():
            raise InputError(
                f"{function.__qualname__}{inspect.signature(function)}: a method takes (model, batch), and its options are "
                "keyword-only with defaults: def mine(model, batch, *, steps=10)."
            )
        about = summary or (inspect.getdoc(function) or "").split("\n")[0]
        METHODS[name] = Method(name, about, source, function, named, traits, measures, code=code_of(function))
        return function

    return register


def get_method(name: str) -> Method:
    """The method called ``name``.

    Raises:
        InputError: There is none; the error lists the known names and suggests the nearest.
    """
    if isinstance(name, list | tuple):
        raise InputError(f"method={name!r}: one method is asked for here. Give its name, and call once for each.")
    if not isinstance(name, str):
        raise InputError(f"method={name!r} has the type {type(name).__name__}. Give the name of a method.")
    if name not in METHODS:
        several = [part.strip() for part in name.split(",")]
        if len(several) > 1 and METHODS.keys() >= {*several}:
            raise InputError(f"unknown method {name!r}. Several are a list: method={several}.")
        raise InputError(
            f"unknown method {name!r}. {nearest(name, METHODS)}",
            python="A method of your own: register it first, with @lrpx.register_method.",
            command="A method of your own: lrpx --plugin FILE, before the command.",
        )
    return METHODS[name]

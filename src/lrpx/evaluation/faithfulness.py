"""Do the tokens that an explanation names matter to the model? Hide them, and watch the explained value.

For an explanation with relevance r over n tokens, v(S) is the explained value with the word embeddings of the tokens S replaced
by a baseline's. Tokens are hidden in the order of r, ties in the order of the text:

1. perturbation curve, most relevant first: v of the first k tokens hidden, for k from 0 to n in ``steps`` steps; the *area over
   the curve* is the mean of v(nothing) - v(k) over the steps, and large for a faithful explanation (Samek et al. 2017);
2. the same, least relevant first: small for a faithful explanation. The difference of both areas does not depend on how much
   the value falls when anything at all is hidden (Blücher et al. 2024);
3. comprehensiveness: v(nothing) - v(the top 1, 5, 10, 20 and 50 % hidden), on average; large is better;
4. sufficiency: v(nothing) - v(all but these hidden), on average; small is better (DeYoung et al. 2020, of logits here).

These say what the model does with inputs that it was not made for. The benchmark's ground truth says what it should use; the two
are different questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError
from ..explainer import Explainer
from ..methods.baselines import Baseline, baseline_of, positive
from ..models.lock import lock_of
from ..models.positions import fresh_rotations
from ..models.signature import task_of
from ..passes.edits import values_without, width_of
from ..passes.validation import check_model
from ..results.explanation import Explanation
from ..text.batching import Item, pad
from .metrics import bootstrap

if TYPE_CHECKING:
    import pandas as pd

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of the tokens, for comprehensiveness and sufficiency
NAMES = ("area_most", "area_least", "difference", "comprehensiveness", "sufficiency")


@dataclass(frozen=True, eq=False, kw_only=True)
class Perturbed:
    """What one explanation's tokens are to the model.

    Attributes:
        text: Which of the texts, counted from 0.
        method: Of the explanation.
        relevance: float64 ``[n]``.
        hidden: ``[S + 1]`` how many tokens are hidden at each step of the curves, from 0 to n.
        most: float64 ``[S + 1]`` the value with so many of the most relevant tokens hidden.
        least: Likewise, the least relevant first.
        comprehensiveness, sufficiency: In logits.
    """

    text: int
    method: str
    relevance: np.ndarray
    hidden: np.ndarray
    most: np.ndarray
    least: np.ndarray
    comprehensiveness: float
    sufficiency: float

    @property
    def area_most(self) -> float:
        """Area over the curve, the most relevant first: higher is better."""
        return float((self.most[0] - self.most[1:]).mean())

    @property
    def area_least(self) -> float:
        """Area over the curve, the least relevant first: lower is better."""
        return float((self.least[0] - self.least[1:]).mean())

    @property
    def difference(self) -> float:
        """``area_most - area_least``: higher is better, 0 for random relevance on average."""
        return self.area_most - self.area_least


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """Several explanations perturbed, in the order in which they were given."""

    each: tuple[Perturbed, ...]

    @property
    def methods(self) -> list[str]:
        """Their methods, each once."""
        return list(dict.fromkeys(one.method for one in self.each))

    def mean(self) -> dict[str, dict[str, tuple[float, float, float]]]:
        """Method -> measure -> its mean over the texts, and the ends of a bootstrap interval of 95 %, in logits."""
        found = {}
        for method in self.methods:
            rows = np.array([[getattr(one, name) for name in NAMES] for one in self.each if one.method == method])
            intervals = np.array(bootstrap(rows)).reshape(3, len(NAMES))
            found[method] = {name: tuple(map(float, intervals[:, i])) for i, name in enumerate(NAMES)}
        return found  # type: ignore[return-value]

    def agreement(self) -> dict[tuple[str, str], float]:
        """Spearman's rank correlation of the relevances of every two methods, averaged over the texts that both explain.

        Texts of fewer than three tokens, and relevance that is the same for all tokens, are left out.
        """
        found = {}
        by_text = [{one.method: one.relevance for one in self.each if one.text == text} for text in self._texts()]
        for i, first in enumerate(self.methods):
            for second in self.methods[i + 1 :]:
                pairs = [(each[first], each[second]) for each in by_text if first in each and second in each]
                both = [rank_correlation(*pair) for pair in pairs]
                known = [value for value in both if value is not None]
                found[first, second] = float(np.mean(known)) if known else float("nan")
        return found

    def _texts(self) -> list[int]:
        return list(dict.fromkeys(one.text for one in self.each))

    def to_frame(self) -> pd.DataFrame:
        """A row per explanation: text, method, and the measures of the top of this file. Needs pandas."""
        import pandas as pd

        names = ("text", "method", *NAMES)
        return pd.DataFrame([{name: getattr(one, name) for name in names} for one in self.each])


def faithfulness(
    explainer: Explainer | PreTrainedModel,
    explanations: Sequence[Explanation],
    *,
    baseline: Baseline = "mean",
    steps: int = 20,
) -> Faithfulness:
    """Hide the tokens of explanations in the order of their relevance; see the top of this file.

    The token at the explained position of a masked language model is never hidden: it is what the model is asked about.

    Args:
        explainer: Of the model that was explained, or the model.
        explanations: Of next tokens or masked tokens: one target, and a contrast or none.
        baseline: What is put in place of hidden tokens' embeddings: ``"zero"``, ``"mean"``, ``"pad"`` or a token id.
        steps: Of the curves; a text of fewer tokens has a step for each.

    Raises:
        InputError: No explanations, or some of which it is not known how the value is computed again.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    model = explainer.model if isinstance(explainer, Explainer) else explainer
    steps, b = positive("steps", steps), baseline_of(model, baseline)
    if not explanations:
        raise InputError("no explanations given: faithfulness(explainer, explainer(texts, method=[...])).")
    for e in explanations:
        _check(e)
    masked = task_of(model) == "masked"
    numbers: dict[Any, int] = {}
    found = []
    with lock_of(model), fresh_rotations(model):
        check_model(model, {})
        for e in explanations:
            text = numbers.setdefault((tuple(e.token_ids), e.position), len(numbers))
            found.append(_perturbed(model, e, text, b, steps, fixed=e.position if masked else None))
    return Faithfulness(tuple(found))


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Spearman's rank correlation of two arrays ``[n]``, ties with their mean rank; ``None`` where it is not defined."""
    ranks = [_ranks(np.asarray(values, float)) for values in (first, second)]
    centred = [values - values.mean() for values in ranks]
    size = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return None if len(ranks[0]) < 3 or size == 0 else float((centred[0] * centred[1]).sum() / size)


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    middle: np.ndarray = (ends - (counts - 1) / 2)[inverse]
    return middle


def _check(e: Explanation) -> None:
    if not isinstance(e, Explanation):
        raise InputError(f"{type(e).__name__}: give explanations, as explainer(texts, method=[...]) returns them.")
    if e.task or e.span is not None or e.explains or e.images or e.pairs is not None:
        what = e.explains or e.task or "several tokens together"
        raise InputError(
            f"an explanation of {what} cannot be computed again from its tokens alone. Faithfulness is for the next or a masked "
            "token, with one token as target and one or none as contrast."
        )


def _perturbed(
    model: PreTrainedModel, e: Explanation, text: int, b: Tensor, steps: int, *, fixed: int | None
) -> Perturbed:
    n = len(e.token_ids)
    contrast = None if e.contrast is None else e.contrast.id
    batch = pad([Item(tuple(e.token_ids), e.position, e.target.id, contrast)], model)
    free = np.array([t for t in range(n) if t != fixed])
    descending = free[np.argsort(-e.relevance[free], kind="stable")]
    counts = np.unique(np.round(np.linspace(0, len(free), min(steps, len(free)) + 1)).astype(int))
    tops = [max(1, round(share * len(free))) for share in SHARES]
    chosen = [descending[:k] for k in counts]
    chosen += [descending[len(free) - k :] for k in counts]  # the least relevant
    chosen += [descending[:k] for k in tops]
    chosen += [descending[k:] for k in tops]
    masks = np.zeros((len(chosen), width_of(batch)), bool)
    for row, hidden in enumerate(chosen):
        masks[row, hidden] = True
    different, which = np.unique(masks, axis=0, return_inverse=True)
    found = values_without(model, batch, [0] * len(different), different, b)[which.reshape(-1)]
    most, least, without, only = np.split(found, np.cumsum([len(counts), len(counts), len(tops)]))
    return Perturbed(
        text=text,
        method=e.method,
        relevance=e.relevance,
        hidden=counts,
        most=most,
        least=least,
        comprehensiveness=float((found[0] - without).mean()),
        sufficiency=float((found[0] - only).mean()),
    )

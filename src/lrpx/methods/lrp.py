"""LRP, AttnLRP and their variants: Gradient x Input of a model whose local Jacobians follow a rule set.

Source: Arras et al. 2025, section LRPx and App. D; Ali et al. 2022 (LRP for transformers); Achtibat et al. 2024 (AttnLRP).
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from ..passes.attribution import attributions, run
from ..passes.dispatch import PassRunner
from ..passes.hidden_states import beyond_sums
from ..text.batching import Attribution, Batch
from .rule_names import Rules, named_rules


def explain(
    model: PreTrainedModel,
    batch: Batch,
    *,
    rules: Rules = "attnlrp",
    at: Sequence[str] = ("input",),
    heads: bool | None = None,
    runner: PassRunner | None = None,
) -> Sequence[Attribution]:
    """Relevance of every input token, ``R_t = sum_d x_td * (d value / d x_td)`` under the rule set, in logits.

    ``relevance`` ``[T]`` is at ``"input"`` or ``"embedding"``, whichever ``at`` names first, or else at the input; whatever else
    it names is in ``layers``, ``[T, width]``. ``heads`` asks for ``by_head`` and its like. See ``run`` for arguments and errors.
    """
    result = run(model, batch, named_rules(rules), at, runner=runner, hidden=beyond_sums(at), heads=bool(heads))
    return attributions(result, batch, decomposes=True)

"""LIME and Kernel SHAP by Captum (extra ``captum``): a linear model of what the value is with some tokens hidden.

Source: Ribeiro et al. 2016 (LIME), Lundberg & Lee 2017 (Kernel SHAP).

Captum chooses which tokens are hidden and how much each such text weighs; the values are those of lrpx, with the baselines of
occlusion, in batches; and the weighted least squares are solved in float64, without regularisation. Where a text has few enough
tokens, Kernel SHAP looks at all sets of them, so that its numbers are the exact Shapley values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError, import_optional
from ..passes.attribution import scored
from ..passes.edits import values_without, width_of
from ..text.batching import Attribution, Batch
from .baselines import Baseline, baseline_of, positive, seed_of
from .occlusion import as_it_is, hidden_with, in_places

ValueOf = Callable[[np.ndarray], np.ndarray]  # bool [R, n], which of n tokens are shown -> the values [R]
_ENDS = 1e6  # weight of the whole text and of none of it, which is infinite in theory


def lime(
    model: PreTrainedModel, batch: Batch, *, samples: int = 256, baseline: Baseline = "mean", seed: int = 0
) -> list[Attribution]:
    """Per token, its coefficient in a linear model of the value with a random half of the tokens hidden.

    Texts weigh ``exp(-d ** 2 / 2)``, with d the cosine distance to the whole text.

    Args:
        model: In eval mode.
        batch: From ``batching.pad``.
        samples: Texts with hidden tokens; more than there are tokens.
        baseline: What each hidden word embedding is; see ``Baseline``.
        seed: Of the choice, which depends on the text too, not on what else is in the batch.

    Raises:
        InputError: Options that are none, too few samples, or an input that is no text.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
        ImportError: Captum is not installed.
    """
    captum = import_optional("captum.attr", 'method="lime"', extra="captum")
    return _explained(captum, lime_scores, model, batch, samples, baseline, seed)[0]


def kernel_shap(
    model: PreTrainedModel, batch: Batch, *, samples: int = 256, baseline: Baseline = "mean", seed: int = 0
) -> list[Attribution]:
    """Per token, its Shapley value: what it adds to the value on average, over all orders in which tokens may be shown.

    Exact where ``2 ** tokens`` is at most ``samples``, estimated otherwise. With the value of the text of hidden tokens alone,
    ``components["baseline"]``, the relevances add up to the value. Arguments and errors are those of ``lime``.
    """
    captum = import_optional("captum.attr", 'method="kernel-shap"', extra="captum")
    found, at_baseline = _explained(captum, shapley_values, model, batch, samples, baseline, seed)
    return [
        replace(one, residual=one.value - start - float(one.relevance.sum()), components={"baseline": start})
        for one, start in zip(found, at_baseline, strict=True)
    ]


def lime_scores(captum: Any, value_of: ValueOf, n: int, samples: int) -> np.ndarray:
    """The coefficients ``[n]`` of the linear model that Captum's LIME fits to a function of n tokens."""
    return _fitted(captum.Lime(None, interpretable_model=_LeastSquares()), value_of, n, samples)


def shapley_values(captum: Any, value_of: ValueOf, n: int, samples: int) -> np.ndarray:
    """The Shapley values ``[n]`` of a function of n tokens, by all sets of them, or by those that Captum's Kernel SHAP draws."""
    if 2**n > samples:
        fit = captum.KernelShap(None)
        fit.interpretable_model = _LeastSquares()
        return _fitted(fit, value_of, n, samples)
    fit = captum.Lime(
        None,
        interpretable_model=_LeastSquares(),
        similarity_func=partial(_weight, n),
        perturb_func=partial(_all_sets, n),
    )
    return _fitted(fit, value_of, n, 2**n)


def _all_sets(n: int, _: Any, **__: Any) -> Iterator[Tensor]:
    for shown in itertools.product((0, 1), repeat=n):
        yield torch.tensor([shown])


def _weight(n: int, _: Any, __: Any, shown: Tensor, **___: Any) -> Tensor:
    """Of a set of k tokens: (n - 1) / (k (n - k) binomial(n, k)), Lundberg & Lee 2017, theorem 2."""
    k = int(shown.sum())
    return torch.tensor([_ENDS if k in (0, n) else (n - 1) / (k * (n - k) * math.comb(n, k))])


class _LeastSquares:
    """Captum's interface of an interpretable model: weighted least squares with a constant, in float64."""

    def fit(self, data: Any) -> None:
        ((shown, values, weights),) = data
        root = weights.double().sqrt().numpy()
        design = np.column_stack([shown.double().numpy(), np.ones(len(shown))])
        found, *_ = np.linalg.lstsq(design * root[:, None], values.double().numpy() * root, rcond=None)
        self._coefficients = torch.from_numpy(found[:-1])

    def representation(self) -> Tensor:
        return self._coefficients


def _fitted(fit: Any, value_of: ValueOf, n: int, samples: int) -> np.ndarray:
    """Have Captum fit a linear model to a function of which tokens are shown."""
    whole = value_of(np.ones((1, n), bool))[0]  # subtracted, since Captum rounds to float32

    def forward(shown: Tensor) -> Tensor:
        return torch.from_numpy(value_of(shown.numpy() > 0) - whole)

    fit.forward_func = forward
    found = fit.attribute(torch.ones(1, n), n_samples=samples, perturbations_per_eval=samples, return_input_shape=False)
    relevance: np.ndarray = found.numpy()
    return relevance


def _explained(
    captum: Any,
    scores: Callable[..., np.ndarray],
    model: PreTrainedModel,
    batch: Batch,
    samples: int,
    baseline: Baseline,
    seed: int,
) -> tuple[list[Attribution], list[float]]:
    """The attributions, and the value of each text with all tokens hidden."""
    samples, b = positive("samples", samples), baseline_of(model, baseline)
    plain, batch = as_it_is(model, batch)
    found, hidden = [], []
    for i, tokens in enumerate(hidden_with(batch)):
        n = len(tokens)
        if samples < n + 2:
            fewest = n + 2
            raise InputError(
                f"{samples} samples are too few: a text of {n} tokens needs {fewest} at least.",
                python=f"Give samples={fewest}.",
                app="Shorten the text, or choose another method.",
            )

        def value_of(shown: np.ndarray, i: int = i, tokens: list[np.ndarray] = tokens) -> np.ndarray:
            masks = np.zeros((len(shown), width_of(batch)), bool)
            for places, of_token in zip(tokens, shown.T, strict=True):
                masks[:, places] = ~of_token[:, None]
            return values_without(model, batch, [i] * len(shown), masks, b)

        with torch.random.fork_rng(devices=[]):  # Captum draws from PyTorch's own generator
            torch.default_generator.manual_seed(seed_of(batch, i, seed))
            found.append(scores(captum, value_of, n, samples))
        hidden.append(float(value_of(np.zeros((1, n), bool))[0]))
    return scored(plain, in_places(batch, found)), hidden

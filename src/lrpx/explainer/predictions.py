"""What the model predicts where a text is explained, and what a reader must know about target and contrast because of it.

Three mistakes make a map that looks right and is of no use, and the probabilities show them:

1. A target without its leading space, or with one too many: the model expects the other spelling.
2. A space at the end of the text: a model that writes spaces into its words predicts something else after one.
3. A target that the model does not expect.
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..heatmap.text import as_string, in_quotes
from ..methods import METHODS, Method
from ..results.explanation import Explanation
from ..results.tokens import Prediction, Token
from ..text.batching import Item, Predictions
from ..text.given import name_of
from ..text.targets import other_spelling
from ..text.tokenization import Encoded

SHOWN = 5  # of the likeliest tokens
LIKELIEST = 100  # the other spelling of a token is looked for among so many
FAR_MORE = 10.0  # times as probable
UNLIKELY = 0.01  # a less probable target, that is not among those shown either, is not expected


def likelihoods(predicted: Predictions | None, tokens: list[Token], *, of_target: bool = True) -> dict[str, Any]:
    """Fields of an ``Explanation``; ``tokens`` are the ``SHOWN`` likeliest. A target that is a function has no probability."""
    if predicted is None:
        return {}
    target, contrast = predicted.target if of_target else (None, None), predicted.contrast or (None, None)
    probabilities = predicted.probabilities[: len(tokens)].tolist()
    return {
        "target_probability": target[0],
        "target_rank": target[1],
        "contrast_probability": contrast[0],
        "contrast_rank": contrast[1],
        "top": tuple(map(Prediction, tokens, probabilities)),
    }


def mistakes(encoded: Encoded, e: Explanation, predicted: Predictions | None, tokenizer: Any) -> tuple[str, ...]:
    """Warnings about what is probably a mistake."""
    found = ends_with_space(encoded, e.position, tokenizer)
    if predicted is not None:
        for role, token, p in (
            ("target", e.target, e.target_probability),
            ("contrast", e.contrast, e.contrast_probability),
        ):
            if token is not None and p is not None:
                found += misspelt_token(role, token, p, predicted, tokenizer)
    return tuple(found)


def misspelt_token(role: str, token: Token, p: float, predicted: Predictions, tokenizer: Any) -> list[str]:
    """A warning if a target or contrast of probability p is a token with another leading space too, and far more probable."""
    other = other_spelling(tokenizer, token.text)
    if other is None or predicted.probabilities[predicted.ids == other].sum() < max(FAR_MORE * p, 1e-300):
        return []
    given = token.shown
    return [far_less_probable(role, given, given[1:] if given.startswith(" ") else f" {given}")]


def far_less_probable(role: str, given: str, meant: str) -> str:
    """The warning about a target or contrast that is spelt with another leading space than the model expects."""
    return (
        f'the {role} "{given}" is far less probable here than "{meant}". A leading space matters: if you mean "{meant}", give '
        "that."
    )


def ends_with_space(encoded: Encoded, position: int, tokenizer: Any) -> list[str]:
    """A warning if what comes before the prediction is a space of its own, and the model's words begin with theirs."""
    if tokenizer is None or position != len(encoded.token_ids) - 1 or encoded.tokens[-1] not in ("Ġ", "▁"):
        return []
    last = tokenizer.convert_ids_to_tokens(tokenizer("a a", add_special_tokens=False, verbose=False)["input_ids"])[-1]
    if last not in ("Ġa", "▁a"):
        return []
    return [
        "the text ends with a space. The model writes a space into the word that follows, so after a separate one it "
        "predicts something else. Leave the space out."
    ]


def likeliest_is_contrast(likeliest: Token, second: Token | None) -> InputError:
    """The error about a contrast that is the top prediction, which is explained where no target is given."""
    example = (
        "" if second is None else f", such as target={second.id} ({as_string(second.shown)}), the second likeliest"
    )
    return InputError(
        f"the model's top prediction is the contrast itself, {as_string(likeliest.shown)}: their difference is 0.",
        python=f"Say which target{example}." if example else "Say which target, such as target=' are'.",
        app="Choose another one in “Explain”.",
    )


def remarks(e: Explanation) -> list[str]:
    """Notes on a logit that says little: a negative one, or that of a token that the model does not expect."""
    found = []
    if e.contrast is None and e.value < 0:
        found.append(
            "the explained logit is negative. A single logit has no meaningful zero; with a contrast the map shows what "
            "speaks for one token rather than the other."
        )
    p, rank = e.target_probability, e.target_rank
    if p is not None and rank is not None and p < UNLIKELY and rank > SHOWN:
        found.append(f"the model does not expect {in_quotes(e.target.shown)} here.")
    return found


def other_rules(method: Method, settings: dict[str, Any]) -> list[str]:
    """A note where the rules are not those that the method is known for."""
    rules = settings.get("rules")
    if rules == method.options.get("rules"):
        return []
    return [f"the rules are {rules}." if isinstance(rules, str) else "the rules are the caller's own."]


def check_function(item: Item, method: Method) -> None:
    """Refuse a function of the scores for a method that does not go backwards from a value.

    Raises:
        InputError: The item has one.
    """
    if item.function is not None and not method.has_passes:
        others = ", ".join(name for name, each in METHODS.items() if each.has_passes)
        raise InputError(
            f"{method.name} explains one score, or the difference of two, and the target is the function "
            f"{name_of(item.function)}. Functions are explained by {others}."
        )

"""The numbers of the paper, as data: Table 2 (accuracy of the explanations) and Table 3 (its models).

Source: Arras, Puri, Kahardipraja, Lapuschkin and Samek (2025), "A Close Look at Decomposition-based XAI-Methods for
Transformer Language Models". About 28,600 samples per tokenizer, subjects by spaCy's ``en_core_web_trf``, double precision
(``Llama-3.2-3B``: bfloat16). ALTI-Logit was not computed for BERT.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "Arras et al. (2025), Tables 2 and 3"

Scores = tuple[float, float, float, float]  # PG2, MRR, RMA, PTA


class PaperModel(NamedTuple):
    """One model of the paper.

    Attributes:
        name: As the paper writes it.
        names: What it is called elsewhere, in lower case and without the owner.
        accuracy: Prediction accuracy on subject-verb agreement.
        parameters: As the paper writes it.
        samples: Of the tokenised set.
        scores: Method -> PG2, MRR, RMA, PTA.
        random: Mean and standard deviation of the four metrics of random relevance, over 10 runs.
    """

    name: str
    names: frozenset[str]
    accuracy: float
    parameters: str
    layers: int
    heads: int
    width: int
    vocabulary: int
    tokenizer: str
    samples: int
    scores: dict[str, Scores]
    random: tuple[Scores, Scores]


_BERT = (30522, "WordPiece", 28472)
_GPT2 = (50257, "BPE", 28602)
_LLAMA = (128256, "tiktoken BPE", 28629)
_RANDOM_BERT: tuple[Scores, Scores] = ((0.080, 0.149, 0.040, 0.500), (0.002, 0.001, 0.000, 0.001))
_RANDOM_GPT2: tuple[Scores, Scores] = ((0.277, 0.360, 0.151, 0.501), (0.004, 0.002, 0.001, 0.001))
_RANDOM_LLAMA: tuple[Scores, Scores] = ((0.241, 0.326, 0.127, 0.501), (0.002, 0.001, 0.001, 0.000))

MODELS = (
    PaperModel(
        "bert-base-uncased",
        frozenset({"bert-base-uncased"}),
        0.969,
        "110M",
        12,
        12,
        768,
        *_BERT,
        {
            "lrp": (0.688, 0.637, 0.208, 0.339),
            "attnlrp": (0.775, 0.705, 0.260, 0.376),
            "gradient": (0.775, 0.718, 0.245, 0.041),
            "gradient-x-input": (0.292, 0.316, 0.095, 0.497),
        },
        _RANDOM_BERT,
    ),
    PaperModel(
        "bert-large-uncased",
        frozenset({"bert-large-uncased"}),
        0.974,
        "340M",
        24,
        16,
        1024,
        *_BERT,
        {
            "lrp": (0.560, 0.521, 0.187, 0.408),
            "attnlrp": (0.641, 0.580, 0.224, 0.383),
            "gradient": (0.555, 0.551, 0.177, 0.041),
            "gradient-x-input": (0.212, 0.249, 0.077, 0.513),
        },
        _RANDOM_BERT,
    ),
    PaperModel(
        "GPT2-small",
        frozenset({"gpt2", "gpt2-small"}),
        0.919,
        "124M",
        12,
        12,
        768,
        *_GPT2,
        {
            "alti-logit": (0.867, 0.808, 0.342, 0.330),
            "lrp": (0.738, 0.706, 0.367, 0.445),
            "attnlrp": (0.705, 0.634, 0.318, 0.408),
            "gradient": (0.592, 0.551, 0.255, 0.153),
            "gradient-x-input": (0.262, 0.353, 0.152, 0.565),
        },
        _RANDOM_GPT2,
    ),
    PaperModel(
        "GPT2-XL",
        frozenset({"gpt2-xl"}),
        0.941,
        "1.5B",
        48,
        25,
        1600,
        *_GPT2,
        {
            "alti-logit": (0.885, 0.852, 0.402, 0.320),
            "lrp": (0.823, 0.754, 0.407, 0.392),
            "attnlrp": (0.779, 0.658, 0.351, 0.384),
            "gradient": (0.579, 0.546, 0.265, 0.153),
            "gradient-x-input": (0.321, 0.408, 0.198, 0.608),
        },
        _RANDOM_GPT2,
    ),
    PaperModel(
        "Llama-3.2-1B",
        frozenset({"llama-3.2-1b"}),
        0.954,
        "1B",
        16,
        32,
        2048,
        *_LLAMA,
        {
            "alti-logit": (0.690, 0.623, 0.288, 0.359),
            "lrp": (0.690, 0.533, 0.221, 0.244),
            "attnlrp": (0.884, 0.814, 0.387, 0.382),
            "gradient": (0.283, 0.366, 0.151, 0.127),
            "gradient-x-input": (0.365, 0.407, 0.183, 0.512),
        },
        _RANDOM_LLAMA,
    ),
    PaperModel(
        "Llama-3.2-3B",
        frozenset({"llama-3.2-3b"}),
        0.956,
        "3B",
        28,
        24,
        3072,
        *_LLAMA,
        {
            "alti-logit": (0.614, 0.557, 0.266, 0.297),
            "lrp": (0.747, 0.622, 0.241, 0.231),
            "attnlrp": (0.885, 0.764, 0.364, 0.326),
            "gradient": (0.275, 0.311, 0.143, 0.127),
            "gradient-x-input": (0.377, 0.413, 0.192, 0.514),
        },
        _RANDOM_LLAMA,
    ),
)


def twin(name: str) -> PaperModel | None:
    """The paper's model that is called ``name`` on the Hub or on disk, if it is one of them."""
    bare = name.rsplit("/", 1)[-1].lower()
    return next((model for model in MODELS if bare in model.names), None)

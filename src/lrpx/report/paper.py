"""The numbers of the paper, read from ``paper.json``: Table 2 (accuracy of the explanations), Table 3 (its models), its set-up.

Source: Arras, Puri, Kahardipraja, Lapuschkin and Samek (2025), "A Close Look at Decomposition-based XAI-Methods for
Transformer Language Models". About 28,600 samples per tokenizer, subjects by spaCy's ``en_core_web_trf``, double
precision (``Llama-3.2-3B``: bfloat16). ALTI-Logit was not computed for BERT.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, NamedTuple

Means = tuple[float, float, float, float]  # PG2, MRR, RMA, PTA


class PaperModel(NamedTuple):
    """One model of the paper.

    Attributes:
        name: As the paper writes it.
        hub: Its name on the Hub.
        names: What it is called elsewhere, in lower case and without the owner.
        accuracy: Prediction accuracy on subject-verb agreement.
        parameters: As the paper writes it.
        samples: Of the tokenised set.
        scores: Method -> PG2, MRR, RMA, PTA.
        random: Mean and standard deviation of the four metrics of random relevance, over 10 runs.
        dtype: In which the explanations were computed.
    """

    name: str
    hub: str
    names: frozenset[str]
    accuracy: float
    parameters: str
    layers: int
    heads: int
    width: int
    vocabulary: int
    tokenizer: str
    samples: int
    scores: dict[str, Means]
    random: tuple[Means, Means]
    dtype: str

    @property
    def download(self) -> int:
        """About how many bytes its weights are on the Hub: its matrices, without biases and norms, which are 1 % at most.

        From the shape of the model: Devlin et al. (2019), Radford et al. (2019), and the configurations of Llama 3.2, whose MLPs
        are 8,192 wide and have 8 heads of keys and values.
        """
        width, embedded = self.width, self.vocabulary * self.width
        if "Llama" in self.hub:  # in bfloat16; input and output embeddings are one
            block = 2 * width**2 + 2 * width * 8 * (width // self.heads) + 3 * width * 8192
            return 2 * (embedded + self.layers * block)
        positions = 1024 if "gpt2" in self.hub else 512
        masks = self.layers * positions**2 if "gpt2" in self.hub else 0  # of attention, which its files hold too
        return 4 * (embedded + positions * width + self.layers * 12 * width**2 + masks)


def _model(entry: dict[str, Any]) -> PaperModel:
    """One entry of ``paper.json``."""
    scores = {method: tuple(numbers) for method, numbers in entry["scores"].items()}
    means, deviations = map(tuple, entry["random"])
    changed = {"names": frozenset(entry["names"]), "scores": scores, "random": (means, deviations)}
    return PaperModel(**({"dtype": SET_UP["dtype"]} | entry | changed))


_DATA = json.loads((files("lrpx.report") / "paper.json").read_text(encoding="utf-8"))
SOURCE: str = _DATA["source"]
SET_UP: dict[str, str] = _DATA["set_up"]  # dtype, source, parser, and versions of spaCy, torch and transformers
MODELS = tuple(map(_model, _DATA["models"]))


def twin(name: str) -> PaperModel | None:
    """The paper's model that is called ``name`` on the Hub or on disk, if it is one of them."""
    bare = name.rsplit("/", 1)[-1].lower()
    return next((model for model in MODELS if bare in model.names), None)

"""Explain what a transformer language model predicts.

    import lrpx

    explainer = lrpx.Explainer("openai-community/gpt2", method="attnlrp")
    e = explainer("The keys to the cabinet", target=" are", contrast=" is")
    e.show()

The command line does the same: ``lrpx explain "The keys to the cabinet" --target " are" --contrast " is"``.
"""

import logging

from .errors import InputError, LrpxError, NonFiniteError, UnsupportedModelError
from .explainer import Explainer, explain
from .explanation import Explanation
from .explanations import Explanations
from .methods import METHODS
from .models.loading import load
from .propagation import rules
from .propagation.propagate import propagate
from .version import __version__

__all__ = [
    "METHODS",
    "Explainer",
    "Explanation",
    "Explanations",
    "InputError",
    "LrpxError",
    "NonFiniteError",
    "UnsupportedModelError",
    "__version__",
    "explain",
    "load",
    "propagate",
    "rules",
]

logging.getLogger("lrpx").addHandler(logging.NullHandler())

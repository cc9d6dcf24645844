"""Explain what a transformer language model predicts.

    import lrpx

    e = lrpx.explain(model, tokenizer, "The keys to the cabinet", target=" are", contrast=" is", method="attnlrp")
    e.show()

The command line does the same: ``lrpx explain "The keys to the cabinet" --target " are" --contrast " is"``.
"""

import logging

from .errors import InputError, LrpxError, NonFiniteError, UnsupportedModelError
from .explainer import explain
from .explanation import Explanation
from .methods import METHODS
from .models.loading import load
from .propagation.propagate import propagate
from .version import __version__

__all__ = [
    "METHODS",
    "Explanation",
    "InputError",
    "LrpxError",
    "NonFiniteError",
    "UnsupportedModelError",
    "__version__",
    "explain",
    "load",
    "propagate",
]

logging.getLogger("lrpx").addHandler(logging.NullHandler())

"""Explain what a transformer language model predicts.

    import lrpx

    explainer = lrpx.Explainer("openai-community/gpt2", method="attnlrp")
    e = explainer("The keys to the cabinet", target=" are", contrast=" is")
    e.show()

The command line does the same: ``lrpx explain "The keys to the cabinet" --target " are" --contrast " is"``.

Importing this is quick: torch and transformers are loaded when something is used that needs them.
"""

import importlib
import importlib.util
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import InputError, LrpxError, LrpxWarning, NonFiniteError, UnsupportedModelError
    from .evaluation.faithfulness import faithfulness
    from .explainer import Explainer, explain
    from .methods import METHODS, register_method
    from .models.loading import load
    from .propagation import rules
    from .propagation.propagate import propagate
    from .results.compare import compare
    from .results.explanation import Explanation
    from .results.explanations import Explanations
    from .results.flow import RelevanceFlow
    from .results.generation import GenerationExplanation
    from .version import __version__

__all__ = [
    "METHODS",
    "Explainer",
    "Explanation",
    "Explanations",
    "GenerationExplanation",
    "InputError",
    "LrpxError",
    "LrpxWarning",
    "NonFiniteError",
    "RelevanceFlow",
    "UnsupportedModelError",
    "__version__",
    "compare",
    "explain",
    "faithfulness",
    "load",
    "propagate",
    "register_method",
    "rules",
]

_HOMES = {  # module below lrpx -> the public names it has
    "errors": ("InputError", "LrpxError", "LrpxWarning", "NonFiniteError", "UnsupportedModelError"),
    "explainer": ("Explainer", "explain"),
    "results.compare": ("compare",),
    "results.explanation": ("Explanation",),
    "results.explanations": ("Explanations",),
    "results.flow": ("RelevanceFlow",),
    "results.generation": ("GenerationExplanation",),
    "evaluation.faithfulness": ("faithfulness",),
    "methods": ("METHODS", "register_method"),
    "models.loading": ("load",),
    "propagation.propagate": ("propagate",),
    "version": ("__version__",),
}
_MODULES = {"rules": "propagation.rules"}  # public names that are modules

logging.getLogger("lrpx").addHandler(logging.NullHandler())

if not TYPE_CHECKING:  # or every name would be known to a type checker

    def __getattr__(name: str) -> Any:
        """A public name or a submodule, imported when it is first used (PEP 562)."""
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is not None:
            value = getattr(importlib.import_module(f".{home}", __name__), name)
        elif name in _MODULES or (name[:1] != "_" and importlib.util.find_spec(f"{__name__}.{name}")):
            value = importlib.import_module(f".{_MODULES.get(name, name)}", __name__)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return __all__

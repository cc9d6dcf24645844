"""``lrpx.Explainer`` and ``lrpx.explain``: from a model, texts and targets to explanations.

1. Tokenise, find the position, resolve target and contrast; refuse what cannot be explained before computing anything.
2. Group by length, pad, and let each method explain each group in one pass.
3. Build the ``Explanation`` objects.

``api.py`` and ``once.py`` have what users call, ``arguments.py`` its types, ``texts.py`` the three steps.
"""

from .api import Explainer
from .once import explain

__all__ = ["Explainer", "explain"]

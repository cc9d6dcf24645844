"""Whether this code runs in a notebook. IPython is looked at only if it is already loaded."""

from __future__ import annotations

import sys


def in_notebook() -> bool:
    """Whether this code runs in a notebook kernel (Jupyter, Colab, VS Code). An IPython terminal has none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None

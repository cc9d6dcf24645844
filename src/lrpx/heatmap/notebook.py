"""Detect a notebook and display HTML there. IPython is used only if it is already loaded."""

from __future__ import annotations

import sys


def running() -> bool:
    """Whether this code runs in a notebook kernel (Jupyter, Colab, VS Code). An IPython terminal has none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def display_html(fragment: str) -> None:
    """Display ``fragment`` as the output of the running cell."""
    from IPython.display import HTML, display

    display(HTML(fragment))

"""Whether we run in a notebook, and how to display HTML there. IPython is used only where it already runs."""

from __future__ import annotations

import sys


def running() -> bool:
    """Whether a notebook kernel (Jupyter, Colab, VS Code) runs this code; an IPython terminal has no kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def display_html(fragment: str) -> None:
    """Display ``fragment`` as the output of the running cell."""
    from IPython.display import HTML, display

    display(HTML(fragment))

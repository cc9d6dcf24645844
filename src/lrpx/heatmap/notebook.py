"""Display HTML in a notebook."""

from __future__ import annotations

from ..notebook import in_notebook as in_notebook


def display_html(fragment: str) -> None:
    """Display ``fragment`` as the output of the running cell."""
    from IPython.display import HTML, display

    display(HTML(fragment))

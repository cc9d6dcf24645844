"""Charts as inline SVG: no script, sizes in pixels, colours by class, set in the page's style sheet.

``metric_bars``: one metric, methods below one another, one bar per model with its confidence interval. ``role_bars``:
one model, which roles each method's relevance goes to; positive relevance to the right, negative to the left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

from ..benchmark.folder import ROLES
from ..benchmark.kinds import Kind
from .results import CHANCE, Result, method_label, methods_in
from .scored import Scored

_LEFT, _WIDTH, _BAR, _GAP, _SPACE = 128, 470, 11, 3, 11  # labels, whole width, height of a bar, between bars, groups
_RIGHT = 44  # for the number after a bar


def bar_classes(results: Sequence[Result]) -> list[str]:
    """The class of each result's bars: one of six colours per model, paler for the paper's numbers of that model."""
    found, own = [], -1
    for result in results:
        own += not result.of_paper
        found.append(f"m{max(own, 0) % 6}" + " paper" * result.of_paper)
    return found


def metric_bars(results: Sequence[Result], metric: str) -> str:
    """One metric of every method and model, and of relevance drawn by chance, on a scale from 0 to 1."""
    methods = methods_in([r for r in results if not r.of_paper])
    group = len(results) * (_BAR + _GAP) - _GAP + _SPACE
    height = 20 + (len(methods) + 1) * group
    plot = _WIDTH - _LEFT - _RIGHT

    def x(value: float) -> float:
        return _LEFT + value * plot

    def marks() -> Iterator[str]:
        for tick in (0, 0.25, 0.5, 0.75, 1):
            yield f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="16" y2="{height - 4}"/>'
            yield f'<text class="tick" x="{x(tick):.1f}" y="10" text-anchor="middle">{tick:g}</text>'
        for n, method in enumerate([*methods, None]):
            top = 22 + n * group
            middle = top + (group - _SPACE) / 2
            label = CHANCE if method is None else method_label(method)
            yield f'<text class="label" x="{_LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>'
            for k, (kind, result) in enumerate(zip(bar_classes(results), results, strict=True)):
                yield from _bar(result, method, metric, kind, x, top + k * (_BAR + _GAP))

    return _svg(height, f"{metric.upper()} by method and model", marks())


def _bar(
    result: Result, method: str | None, metric: str, kind: str, x: Callable[[float], float], top: float
) -> Iterator[str]:
    """One bar with its interval, its number and a tooltip."""
    if method is None:
        if metric not in result.random:
            return
        mean, spread = result.random[metric]
        low, high, told = mean - spread, mean + spread, f"± {spread:.3f}"
    else:
        scored = result.reported(method)
        if scored is None or metric not in scored.scores:
            return
        found = scored.scores[metric]
        mean, low, high = found if found.known else (found.mean,) * 3
        told = f"{low:.3f}–{high:.3f}" if found.known else ""
    kind += " random" * (method is None)
    middle = top + _BAR / 2
    name = CHANCE if method is None else method_label(method)
    yield f"<g><title>{escape(f'{result.label}, {name}: {mean:.3f} {told}')}</title>"
    yield f'<rect class="{kind}" x="{x(0):.1f}" y="{top:.1f}" width="{max(x(mean) - x(0), 0.5):.1f}" height="{_BAR}"/>'
    if high > low:
        yield f'<line class="whisker" x1="{x(max(low, 0)):.1f}" x2="{x(min(high, 1)):.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>'
        for end in (max(low, 0), min(high, 1)):
            yield f'<line class="whisker" x1="{x(end):.1f}" x2="{x(end):.1f}" y1="{middle - 3:.1f}" y2="{middle + 3:.1f}"/>'
    yield f'<text class="number" x="{x(max(mean, min(high, 1))) + 5:.1f}" y="{middle + 3.5:.1f}">{mean:.3f}</text></g>'


def role_bars(result: Result, kind: Kind) -> str:
    """Shares of relevance by role, one bar per method, and the share of tokens for comparison."""
    methods = [(method_label(m), s) for m in methods_in([result]) if (s := result.reported(m)) is not None]
    bar, space, left, width = 20, 9, 150, 900
    negative = max([sum(n for _, n in s.roles.values()) for _, s in methods], default=0.0)
    zero = left + (width - left - 10) * (negative / (1 + negative) if negative else 0.0)
    scale = (width - 10 - zero) / 1.0
    height = 22 + (len(methods) + 1) * (bar + space)

    def marks() -> Iterator[str]:
        ticks = [t / 4 for t in range(-4, 5) if zero + t / 4 * scale >= left - 1]
        for tick in ticks:
            at = zero + tick * scale
            style = "axis" if tick == 0 else "grid"
            yield f'<line class="{style}" x1="{at:.1f}" x2="{at:.1f}" y1="16" y2="{height - 4}"/>'
            label = f"{tick:+g}".replace("-", "−") if tick else "0"
            yield f'<text class="tick" x="{at:.1f}" y="10" text-anchor="middle">{label}</text>'
        tokens = [("share of the tokens", role, result.token_roles[role], 1) for role in ROLES]
        yield from _stack("tokens", kind, tokens, zero, scale, 22, bar, left, "faint")
        for n, (name, scored) in enumerate(methods, start=1):
            yield from _stack(name, kind, _parts(scored), zero, scale, 22 + n * (bar + space), bar, left, "")

    return _svg(height, f"Relevance by role, {result.label}", marks(), width)


# Of attractors, whose colour alone does not have to tell them from subjects. It stands in the page once.
HATCHING = (
    '<svg style="position:absolute;width:0;height:0" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line x1="1" x2="1" y1="0" y2="6" stroke="#fff" '
    'stroke-opacity=".35" stroke-width="1.5"/></pattern></defs></svg>'
)


def _parts(scored: Scored) -> list[tuple[str, str, float, int]]:
    """What a bar is made of: tooltip, role, share, side."""
    right = [("positive relevance", role, scored.roles[role][0], 1) for role in ROLES]
    return right + [("negative relevance", role, scored.roles[role][1], -1) for role in ROLES]


def _stack(
    name: str,
    kind: Kind,
    parts: Sequence[tuple[str, str, float, int]],
    zero: float,
    scale: float,
    top: float,
    bar: float,
    left: float,
    style: str,
) -> Iterator[str]:
    yield f'<text class="label" x="{left - 10}" y="{top + bar / 2 + 4:.1f}" text-anchor="end">{escape(name)}</text>'
    ends = {1: zero, -1: zero}
    for what, role, share, side in parts:
        if not share:
            continue
        start, ends[side] = ends[side], ends[side] + side * share * scale
        x, width = min(start, ends[side]), share * scale
        yield f"<g><title>{escape(f'{name}, {kind.role(role)}: {what} {share:.3f}')}</title>"
        place = f'x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bar}"'
        yield f'<rect class="{role} {style}" {place}/>' + f'<rect class="hatch" {place}/>' * (role == "attractor")
        if width > 34:
            at = f'x="{x + width / 2:.1f}" y="{top + bar / 2 + 4:.1f}"'
            yield f'<text class="inside" {at} text-anchor="middle">{share:.2f}</text>'
        yield "</g>"


def _svg(height: float, title: str, marks: Iterator[str], width: int = _WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title)}" style="max-width:{width}px">'
        f"{''.join(marks)}</svg>"
    )

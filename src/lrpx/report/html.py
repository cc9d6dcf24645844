"""A report as one self-contained page without scripts or external resources, for light and dark screens and print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from ..benchmark.folder import ROLES
from ..heatmap import Look, html_fragment
from . import charts, tables
from .examples import Example, examples
from .results import Result, kind_in, methods_in, notes, without_sign
from .tables import Table, TableCell

_PAGE = 890  # pixels for the columns of a table, beside the names of its rows


def report_page(results: Sequence[Result], count: int) -> str:
    """The complete page.

    Args:
        results: At least one of them not the paper's.
        count: How many samples per model to show as heatmaps.
    """
    style = (files("lrpx.report") / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>Accuracy of explanations: {escape(', '.join(r.label for r in results if not r.of_paper))}</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n{''.join(_body(results, count))}</main>\n</body>\n</html>\n"
    )


def _body(results: Sequence[Result], count: int) -> Iterator[str]:
    own = [r for r in results if not r.of_paper]
    kind = kind_in(own)
    yield f"<h1>Do explanations point at the {kind.truth}?</h1>\n"
    yield (
        f'<p class="soft">{kind.idea} An explanation of the prediction should point at it. Method: Arras et al. (2025).</p>\n'
    )
    for note in notes(results):
        yield f'<p class="note">{escape(note)}</p>\n'
    yield _card(tables.scores(results))
    yield _metric_charts(results)
    if norms := tables.norms(results):
        yield _card(norms)
    if faithfulness := tables.faithfulness_table(results):
        yield _card(faithfulness)
    yield _card(tables.accuracy(results))
    yield _role_charts(own)
    if count:
        for result in own:
            yield from _examples(result, count)
    yield "".join(_about(own))


def _card(table: Table) -> str:
    return (
        f'<section class="card"><h2>{escape(table.title)}</h2>\n{_warning(table)}'
        f'<div class="scroll">{"".join(_table(table))}</div>\n'
        f'<p class="soft">{escape(table.caption)}</p></section>\n'
    )


def _warning(table: Table) -> str:
    return f'<p class="warning">{escape(table.warning)}</p>\n' if table.warning else ""


def _fitting(table: Table) -> Iterator[Table]:
    """The table, in pieces with as many models side by side as the page is wide."""
    start, used = 0, 0.0
    for n in range(len(table.groups)):
        columns = zip(*(cells[n] for _, cells in table.rows), strict=True)
        width = sum(18 + max(max(8.2 * len(c.text), 6.2 * len(c.interval)) for c in column) for column in columns)
        if n > start and used + width > _PAGE:
            yield table.part(start, n)
            start, used = n, 0.0
        used += width
    yield table.part(start, len(table.groups))


def _table(table: Table) -> Iterator[str]:
    for block in _fitting(table):
        yield '<table class="t"><thead>'
        if any(label for label, _ in block.groups):
            heads = (
                f'<th class="group start" colspan="{len(c)}" scope="colgroup">{escape(label)}</th>'
                for label, c in block.groups
            )
            yield f"<tr><td></td>{''.join(heads)}</tr>"
        columns = (
            f'<th scope="col"{_start(n)}>{escape(c)}</th>' for _, names in block.groups for n, c in enumerate(names)
        )
        yield f"<tr><th></th>{''.join(columns)}</tr></thead><tbody>"
        first = len(block.rows) - block.summary
        for k, (name, groups) in enumerate(block.rows):
            kind = "summary" if k >= first else ""
            kind += " apart" if block.summary and k == first else ""
            cells = "".join(_cell(cell, n) for group in groups for n, cell in enumerate(group))
            yield f'<tr class="{kind}"><th scope="row">{escape(name)}</th>{cells}</tr>'
        yield "</tbody></table>\n"


def _start(column: int) -> str:
    return ' class="start"' if column == 0 else ""


def _cell(cell: TableCell, column: int) -> str:
    text = {0: "{}", 1: "<b>{}</b>", 2: "<u>{}</u>"}[cell.rank].format(escape(cell.text)) + escape(cell.mark)
    kind = " ".join(["start"] * (column == 0) + ["best"] * (cell.rank == 1))
    return f'<td class="{kind}">{text}' + (f"<small>{cell.interval}</small>" if cell.interval else "") + "</td>"


def _metric_charts(results: Sequence[Result]) -> str:
    """Charts of the user's models and of the same models in the paper."""
    shown = [r for n, r in enumerate(results) if not r.of_paper or _is_twin(results, n)]
    kinds = zip(charts.bar_classes(shown), shown, strict=True)
    legend = "".join(f'<span><i class="{kind}"></i>{escape(r.label)}</span>' for kind, r in kinds)
    k = shown[0].k
    truth = kind_in(shown).truth
    meanings = (f"a {truth} token is among the top {k}", *(meaning.format(truth=truth) for meaning in _FULL))
    drawn = "".join(
        f"<div><h3>{m.upper()}: {meaning}</h3>{charts.metric_bars(shown, m)}</div>"
        for m, meaning in zip(shown[0].metrics, meanings, strict=True)
    )
    return (
        f'<section class="card"><h2>By metric</h2><div class="legend">{legend}</div><div class="grid2">{drawn}</div>'
        '<p class="soft">Lines: 95 % confidence interval; for chance one standard deviation over the seeds.</p>'
        "</section>\n"
    )


_FULL = (  # of MRR, RMA and PTA
    "reciprocal rank of the first {truth} token",
    "positive relevance on the {truth}",
    "tokens whose sign agrees with the {truth}",
)


def _is_twin(results: Sequence[Result], place: int) -> bool:
    """Whether the result at ``place`` is the paper's version of the user's model before it."""
    from .paper import twin

    before = results[place - 1] if place else None
    own = twin(before.runs[0].name) if before is not None and not before.of_paper else None
    return own is not None and results[place].label == f"{own.name} (paper)"


def _role_charts(results: Sequence[Result]) -> str:
    kind = kind_in(results)
    legend = "".join(f'<span><i class="{role}"></i>{kind.role(role)}</span>' for role in ROLES)
    drawn = charts.HATCHING + "".join(
        f"<h3>{escape(r.label)}</h3>{charts.role_bars(r, kind)}" for r in results if r.token_roles
    )
    table = tables.roles(results)
    unsigned = without_sign(methods_in(results), results, "all of it stands to the right, whether for or against")
    return (
        f'<section class="card"><h2>{escape(table.title)}</h2>{_warning(table)}<div class="legend">{legend}</div>{drawn}'
        f'<p class="soft">{escape(table.caption)} To the right: relevance for the predicted {kind.other}; to the left: '
        f"against it.{escape(unsigned)}</p>"
        '<details><summary class="soft">Numbers</summary>'
        f'<div class="scroll">{"".join(_table(table))}</div></details></section>\n'
    )


def _examples(result: Result, count: int) -> Iterator[str]:
    found, kind = examples(result, count), kind_in([result])
    if not found:
        return
    yield f'<section class="card"><h2>Clearest predictions of {escape(result.label)}</h2>\n'
    yield (
        f'<p class="soft">The {len(found)} correctly predicted samples with the highest difference of logits. '
        f'The {kind.truth} is <u class="s">underlined</u>, attractors are <u class="a">dotted</u>, the predicted {kind.word} is '
        f'<span class="verb">green</span>. {escape(found[0].colours)} Hover over a token for its number.</p>\n'
    )
    for example in found:
        maps = html_fragment(example.explanations, Look("max"))
        value = f"{example.value:+.3g}".replace("-", "−")
        yield f'<div class="example"><p class="sentence">{_sentence(example)}</p>\n'
        yield (
            f'<p class="soft">row {example.sample_id} of the source · logit <q>{escape(example.predicted)}</q> − logit '
            f"<q>{escape(example.other)}</q> = {value}</p>\n{maps}</div>\n"
        )
    yield "</section>\n"


def _sentence(example: Example) -> str:
    """The sentence, its subject underlined, attractors dotted, the predicted verb in its place, without special tokens."""
    pieces = []
    verb = f' <span class="verb">{escape(example.predicted)}</span>'
    for unit in example.units:
        roles = {example.roles[i] for i in range(unit.start, unit.end)}
        if roles == {"special"}:
            pieces.append(verb if unit.start == example.position else "")
            continue
        text = escape(unit.text)
        body = text.lstrip(" ")
        lead = text[: len(text) - len(body)]
        line = "s" if "subject" in roles else "a" if "attractor" in roles else ""
        pieces.append(lead + (f'<u class="{line}">{body}</u>' if line else body))
    masked = "special" in {example.roles[example.position]}
    return "".join(pieces).strip() + ("" if masked else verb)


def _about(results: Sequence[Result]) -> Iterator[str]:
    yield '<section class="card"><h2>What the numbers come from</h2>\n'
    for result in results:
        for run in result.runs:
            yield f"<h3>{escape(result.label)}: {escape(run.path.name)}</h3><dl>"
            for name, value in _facts(run.manifest):
                yield f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>"
            yield "</dl>\n"
    yield "</section>\n"


def _facts(manifest: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    benchmark, model, options = manifest["benchmark"], manifest["model"], manifest["options"]
    parser = benchmark["parser"]
    versions = f" {parser['version']}, spaCy {parser['spacy']}" if parser else ""
    told = "ground truth:" if benchmark.get("task") else "subjects by"
    yield "sentences", f"{benchmark['source']}, {told} {benchmark['ground_truth']}{versions}"
    yield "tokenised set", f"{benchmark['tokenized']}, {benchmark['input']} input, sha256 {benchmark['samples'][:16]}…"
    limit = options["limit"]
    yield (
        "samples",
        f"{manifest['plan']['samples']:,}" + (f" (limit {limit:,}, seed {options['seed']})" if limit else ""),
    )
    yield (
        "model",
        f"{model['architecture']}, revision {model['revision'] or 'not known'}, weights {model['weights'][:16]}…",
    )
    yield "computed in", f"{model['dtype']} on {model['device']}, attention {model['attn_implementation']}"
    yield "methods", ", ".join(manifest["methods"])
    rules = f", {options['rules']} for layers with weights" if "rules" in options else ""
    yield "relevance at", f"the {options['at']}{rules}"
    if options["relevances"]:
        yield "relevances from", f"{options['relevances']['file']}, sha256 {options['relevances']['sha256'][:16]}…"
    yield "versions", ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())

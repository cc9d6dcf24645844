"""The dataset card: figures of a benchmark folder, counted from its files, beside those of the paper.

Markdown with the YAML header that the Hugging Face Hub reads, so that the folder can be uploaded as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from .card_figures import distribution, percentage, spread, table_lines
from .card_tasks import about_blimp, about_haystack
from .folder import Benchmark, TokenizedSet
from .kinds import kind_of, task_and_truth

PAPER = "Arras, Puri, Kahardipraja, Lapuschkin and Samek (2025)"
PAPER_ROWS = 29985
PAPER_DROPPED = {"equal_forms": 46, "no_subject": 1005, "verb_tag": 148}

# Arras et al. (2025), App. "XAI Benchmark Dataset Generation": size of the vocabulary -> name, and what the table of a
# tokenised set says there: samples, tokens in the input and in the ground truth, ground truths of one and of two tokens.
PAPER_SETS = {
    30522: ("BERT", (28472, "9-170, mean 30, std 12, median 28", "1-7", "96.7%", "2.6%")),
    50257: ("GPT-2", (28602, "2-60, mean 11, std 7, median 8", "1-7", "85.1%", "12.4%")),
    128256: ("Llama-3", (28629, "3-60, mean 11, std 7, median 9", "1-5", "89.4%", "8.8%")),
}

_TAGS = {"blimp": "agreement", "haystack": "long-context"}  # of tasks that are not subject-verb agreement


def card(benchmark: Benchmark) -> str:
    """The text of ``README.md``."""
    sets = list(benchmark.tokenized.values())
    task = benchmark.manifest.get("task")
    if task is None:
        return "\n".join([*_header(benchmark, sets), *_about(benchmark), *_sentences(benchmark), *_tokenized(sets)])
    own = about_blimp(benchmark) if task == "blimp" else about_haystack(benchmark)
    return "\n".join([*_header(benchmark, sets), *own, *_tokenized(sets, paper=False)])


def _header(benchmark: Benchmark, sets: Sequence[TokenizedSet]) -> list[str]:
    """YAML between two rules."""
    from huggingface_hub import DatasetCardData

    bounds = {1000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}
    published = benchmark.counts["published"]
    task = benchmark.manifest.get("task")
    free = bool(published) and published["license"] == "CC BY 4.0"
    terms = (
        {"license": "cc-by-4.0"}
        if free
        else {"license": "other", "license_name": "made-by-lrpx" if task == "haystack" else "as-the-source"}
    )
    files = {"samples": "samples.parquet", "dropped": "dropped.parquet"}
    files |= {f"tokenized-{s.name}": f"tokenized/{s.name}/samples.parquet" for s in sets}
    data = DatasetCardData(
        pretty_name=kind_of([task_and_truth(benchmark.manifest)]).title,
        language=["en"],
        size_categories=[next((name for bound, name in bounds.items() if len(benchmark) < bound), "n>1M")],
        tags=["explainability", "attribution", _TAGS.get(task or "", "subject-verb-agreement")],
        configs=[{"config_name": name, "data_files": file} for name, file in files.items()],
        **terms,  # type: ignore[arg-type]
    )
    return ["---", data.to_yaml(line_break="\n"), "---", ""]


def _about(benchmark: Benchmark) -> list[str]:
    source, origin = benchmark.manifest["source"], benchmark.manifest["ground_truth"]
    published = benchmark.counts["published"]
    if "parser" in origin:
        parser = origin["parser"]
        found = f"the parse of spaCy {parser['spacy']} with `{parser['name']}` {parser['version']}"
    else:
        found = f"the file `{origin['file']['name']}` (sha256 `{origin['file']['sha256']}`)"
    lines = [
        "# Subject-verb agreement with ground truth for attributions",
        "",
        "Sentences with a verb in present tense, the verb in the other number, and the word that decides between the two: the",
        f"subject. An explanation of the model's choice should point at it. Method: {PAPER}, *A Close Look at",
        "Decomposition-based XAI-Methods for Transformer Language Models*.",
        "",
        f"Source: `{source['name']}`, format {source['format']}, sha256 `{source['sha256']}`"
        + (
            f": {published['title']} ({published['paper']})."
            if published
            else "; not a published file that lrpx knows."
        ),
        f"The subject comes from {found}.",
        "",
        "The sentences belong to their source and keep its licence"
        + (f": {published['license']}." if published else "; look it up before you share this folder."),
        "",
    ]
    if "parser" in origin:
        lines += ["A parser makes mistakes, so some ground truths are wrong.", ""]
    return lines


def _sentences(benchmark: Benchmark) -> list[str]:
    """What the filters did, and what the sentences are like."""
    counts, samples = benchmark.counts, benchmark.samples
    paper_left = PAPER_ROWS
    steps: list[list[Any]] = [["rows of the source", "", counts["rows"], "", PAPER_ROWS]]
    for step in counts["steps"]:
        dropped = PAPER_DROPPED.get(step["reason"])
        if dropped is None and not step["dropped"]:
            continue  # a filter that this kind of source does not need
        paper_left -= dropped or 0
        steps.append([step["what"], step["dropped"], step["left"], dropped or "", paper_left if dropped else ""])
    tags = Counter(samples.column("verb_tag").to_pylist())
    known = tags["VBP"] + tags["VBZ"]
    subject = np.array(samples.column("subject_index").to_pylist())
    distance = np.array(samples.column("verb_index").to_pylist()) - subject
    words = [len(sentence.split(" ")) for sentence in samples.column("sentence").to_pylist()]
    found = [None if a is None else len(a) for a in samples.column("attractors").to_pylist()]
    facts: list[list[Any]] = [
        ["samples", len(benchmark), paper_left],
        ["plural verb (VBP)", percentage(tags["VBP"], known), "67%"],
        ["singular verb (VBZ)", percentage(tags["VBZ"], known), "33%"],
        ["words in a sentence", spread(words), ""],
        ["words from subject to verb", spread(np.abs(distance)), ""],
        ["subject after the verb", percentage(int((distance < 0).sum()), len(benchmark)), ""],
        ["attractors, according to the source", distribution(samples.column("n_attractors").to_pylist()), "1 to 4"],
        ["attractors found between subject and verb", distribution(found), ""],
    ]
    return [
        "## Sentences",
        "",
        "`samples.parquet` has one row per sentence, `dropped.parquet` every other row of the source with its reason.",
        "",
        *table_lines(["filter", "dropped", "left", "paper: dropped", "paper: left"], steps),
        "",
        *table_lines(["", "here", "paper"], facts),
        "",
    ]


def _tokenized(sets: Sequence[TokenizedSet], *, paper: bool = True) -> list[str]:
    """One section per tokenizer; ``paper``: beside the paper's figures."""
    lines = []
    for tokenized in sets:
        facts, counts = tokenized.manifest["tokenizer"], tokenized.counts
        theirs, figures = PAPER_SETS.get(facts["vocabulary"], ("", ("",) * 5))
        truth = np.array([len(g) for g in tokenized.ground_truths])
        roles = Counter(role for roles in tokenized.table.column("roles").to_pylist() for role in roles)
        here = {
            "samples": len(tokenized),
            "tokens in the input": spread(tokenized.lengths),
            "tokens in the ground truth": f"{truth.min()}-{truth.max()}",
            "ground truth of 1 token": percentage(int((truth == 1).sum()), len(truth)),
            "ground truth of 2 tokens": percentage(int((truth == 2).sum()), len(truth)),
            "tokens by role": ", ".join(f"{role} {percentage(n, roles.total())}" for role, n in sorted(roles.items())),
        }
        head = ["", "here", f"paper ({theirs})" if theirs else "paper"] if paper else ["", "here"]
        rows = [[*row, figure][: len(head)] for row, figure in zip(here.items(), (*figures, ""), strict=True)]
        steps = [[step["what"], step["dropped"], step["left"]] for step in counts["steps"] if step["dropped"]]
        lines += [
            f"## Tokenised for `{tokenized.name}`",
            "",
            f"{tokenized.input.capitalize()} input, {facts['model']} vocabulary of {facts['vocabulary']}, tokenizer sha256 "
            f"`{facts['sha256']}`.",
            "",
            *table_lines(head, rows),
            "",
            *table_lines(["filter", "dropped", "left"], [["samples of the benchmark", "", counts["rows"]], *steps]),
            "",
        ]
    return lines

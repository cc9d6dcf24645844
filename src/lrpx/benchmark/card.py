"""The dataset card: figures of a benchmark folder, counted from its files, beside those of the paper.

Markdown with the YAML header that the Hugging Face Hub reads, so that the folder can be uploaded as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .folder import Benchmark, TokenizedSet

PAPER = "Arras, Puri, Kahardipraja, Lapuschkin and Samek (2025)"
PAPER_ROWS = 29985
PAPER_DROPPED = {"equal_forms": 46, "no_subject": 1005, "verb_tag": 148}
PAPER_PLURAL = 0.67


class Lengths(NamedTuple):
    """Least, greatest, mean, standard deviation and median of some lengths."""

    least: int
    greatest: int
    mean: float
    std: float
    median: float

    @classmethod
    def of(cls, values: Any) -> Lengths:
        """The figures of a non-empty array of integers."""
        array = np.asarray(values)
        return cls(int(array.min()), int(array.max()), array.mean(), array.std(), float(np.median(array)))

    def __str__(self) -> str:
        return f"{self.least}-{self.greatest}, mean {self.mean:.3g}, std {self.std:.2g}, median {self.median:.3g}"


class PaperSet(NamedTuple):
    """The paper's figures of one tokenised set."""

    name: str
    samples: int
    length: Lengths  # of the input
    truth: tuple[int, int]  # least and greatest length of the ground truth
    shares: tuple[float, float]  # of ground truths of one and of two tokens


# Arras et al. (2025), App. "XAI Benchmark Dataset Generation", by size of the vocabulary.
PAPER_SETS = {
    30522: PaperSet("BERT", 28472, Lengths(9, 170, 30, 12, 28), (1, 7), (0.967, 0.026)),
    50257: PaperSet("GPT-2", 28602, Lengths(2, 60, 11, 7, 8), (1, 7), (0.851, 0.124)),
    128256: PaperSet("Llama-3", 28629, Lengths(3, 60, 11, 7, 9), (1, 5), (0.894, 0.088)),
}


def card(benchmark: Benchmark) -> str:
    """The text of ``README.md``."""
    sets = list(benchmark.tokenized.values())
    return "\n".join([*_header(benchmark, sets), *_about(benchmark), *_sentences(benchmark), *_tokenized(sets)])


def _header(benchmark: Benchmark, sets: Sequence[TokenizedSet]) -> list[str]:
    """YAML between two rules."""
    bounds = {1000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}
    size = next((name for bound, name in bounds.items() if len(benchmark) < bound), "n>1M")
    published = benchmark.counts["published"]
    free = bool(published) and published["license"] == "CC BY 4.0"
    configs = [("samples", "samples.parquet"), ("dropped", "dropped.parquet")]
    configs += [(f"tokenized-{s.name}", f"tokenized/{s.name}/samples.parquet") for s in sets]
    return [
        "---",
        "pretty_name: Subject-verb agreement with ground truth for attributions",
        "language:",
        "- en",
        *(["license: cc-by-4.0"] if free else ["license: other", "license_name: as-the-source"]),
        "size_categories:",
        f"- {size}",
        "tags:",
        *(f"- {tag}" for tag in ("explainability", "attribution", "subject-verb-agreement")),
        "configs:",
        *(line for name, file in configs for line in (f"- config_name: {name}", f"  data_files: {file}")),
        "---",
        "",
    ]


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
    facts: list[list[Any]] = [
        ["samples", len(benchmark), paper_left],
        ["plural verb (VBP)", _share(tags["VBP"], known), f"{PAPER_PLURAL:.0%}"],
        ["singular verb (VBZ)", _share(tags["VBZ"], known), f"{1 - PAPER_PLURAL:.0%}"],
        ["words in a sentence", Lengths.of([len(s.split(" ")) for s in samples.column("sentence").to_pylist()]), ""],
        ["words from subject to verb", Lengths.of(np.abs(distance)), ""],
        ["subject after the verb", _share(int((distance < 0).sum()), len(benchmark)), ""],
        ["attractors, according to the source", _distribution(samples.column("n_attractors").to_pylist()), "1 to 4"],
        [
            "attractors found between subject and verb",
            _distribution([None if a is None else len(a) for a in samples.column("attractors").to_pylist()]),
            "",
        ],
    ]
    return [
        "## Sentences",
        "",
        "`samples.parquet` has one row per sentence, `dropped.parquet` every other row of the source with its reason.",
        "",
        *_table(["filter", "dropped", "left", "paper: dropped", "paper: left"], steps),
        "",
        *_table(["", "here", "paper"], facts),
        "",
    ]


def _tokenized(sets: Sequence[TokenizedSet]) -> list[str]:
    """One section per tokenizer."""
    lines = []
    for tokenized in sets:
        facts = tokenized.manifest["tokenizer"]
        paper = PAPER_SETS.get(facts["vocabulary"])
        truth = np.array([len(g) for g in tokenized.ground_truths])
        roles = Counter(role for roles in tokenized.table.column("roles").to_pylist() for role in roles)
        rows: list[list[Any]] = [
            ["samples", len(tokenized), paper.samples if paper else ""],
            ["tokens in the input", Lengths.of(tokenized.lengths), paper.length if paper else ""],
            [
                "tokens in the ground truth",
                f"{truth.min()}-{truth.max()}",
                f"{paper.truth[0]}-{paper.truth[1]}" if paper else "",
            ],
            *(
                [
                    f"ground truth of {n} token{'s' * (n > 1)}",
                    _share(int((truth == n).sum()), len(truth)),
                    f"{paper.shares[n - 1]:.1%}" if paper else "",
                ]
                for n in (1, 2)
            ),
            [
                "tokens by role",
                ", ".join(f"{role} {_share(n, roles.total())}" for role, n in sorted(roles.items())),
                "",
            ],
        ]
        steps = [[step["what"], step["dropped"], step["left"]] for step in tokenized.counts["steps"] if step["dropped"]]
        lines += [
            f"## Tokenised for `{tokenized.name}`",
            "",
            f"{tokenized.input.capitalize()} input, {facts['model']} vocabulary of {facts['vocabulary']}, tokenizer sha256 "
            f"`{facts['sha256']}`.",
            "",
            *_table(["", "here", f"paper ({paper.name})" if paper else "paper"], rows),
            "",
            *(
                _table(
                    ["filter", "dropped", "left"], [["samples of the benchmark", "", tokenized.counts["rows"]], *steps]
                )
            ),
            "",
        ]
    return lines


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "not known"


def _distribution(numbers: Sequence[int | None]) -> str:
    """``1: 40.0%, 2: 60.0%`` of the numbers that are known."""
    known = Counter(n for n in numbers if n is not None)
    return ", ".join(f"{n}: {_share(known[n], known.total())}" for n in sorted(known)) or "not known"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(_cell(c) for c in line) + " |" for line in lines]


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|")

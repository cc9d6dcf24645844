"""What the cards of BLiMP's agreement paradigms and of the haystack say about their samples."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from .blimp import PAIR_REASONS, PARADIGMS
from .card_figures import percentage, spread, table_lines
from .folder import Benchmark
from .kinds import KINDS


def about_blimp(benchmark: Benchmark) -> list[str]:
    """What is predicted and what decides it, in each paradigm, and what was dropped."""
    source, counts, samples = benchmark.manifest["source"], benchmark.counts, benchmark.samples
    published = counts["published"]
    origin = (
        f"{published['title']} ({published['paper']})" if published else "not the files that BLiMP's authors published"
    )
    terms = f"{published['license']}." if published else "look it up before you share this folder."
    reasons = [reason for reason in PAIR_REASONS if any(each[reason] for each in counts["paradigms"].values())]
    rows: list[list[Any]] = [
        [
            name,
            PARADIGMS[name].predicted,
            PARADIGMS[name].decides,
            "in the pair" if PARADIGMS[name].varies == "decides" else "by its place",
            each["rows"],
            *(each[reason] or "" for reason in reasons),
            each["kept"],
        ]
        for name, each in counts["paradigms"].items()
    ]
    predicted, decides = (np.array(samples.column(name).to_pylist()) for name in ("verb_index", "subject_index"))
    distance = predicted - decides
    words = [len(sentence.split(" ")) for sentence in samples.column("sentence").to_pylist()]
    facts: list[list[Any]] = [
        ["samples", len(benchmark)],
        ["words in a sentence", spread(words)],
        ["words from the deciding to the predicted word", spread(distance)],
        ["deciding word right before the predicted one", percentage(int((distance == 1).sum()), len(benchmark))],
    ]
    return [
        f"# {KINDS['blimp'].title}",
        "",
        "Sentences with a word in one of two forms, the other form, and the one word that decides between the two: the",
        "determiner (*those* essays), the subject (the *women* are) or the antecedent (*Carol* hated herself). An",
        "explanation of the model's choice should point at it.",
        "",
        f"Source: `{source['name']}`, sha256 `{source['sha256']}`: {origin}.",
        "",
        f"The sentences belong to their source and keep its licence: {terms}",
        "",
        "## Sentences",
        "",
        "`samples.parquet` has one row per sentence; in all paradigms, `verb` is the predicted word, `other` its other form",
        "and `subject` the deciding word. `dropped.parquet` has every other pair with its reason.",
        "",
        "The two sentences of a pair differ in one word. If that is the deciding word, it is found *in the pair*, and the",
        "other form of the predicted word is looked up in the paradigms that vary it. If it is the predicted word, the",
        "deciding one has a known place in BLiMP's templates: the last demonstrative before a noun; the noun that ends the",
        "subject before a verb, before *of* or *about*, or before *that* or *who*; the noun or name that begins the",
        "sentence before a reflexive pronoun.",
        "",
        *table_lines(["paradigm", "predicted", "decides", "found", "pairs", *reasons, "kept"], rows),
        "",
        *(f"- `{reason}`: {PAIR_REASONS[reason]}" for reason in reasons),
        "",
        *table_lines(["", "here"], facts),
        "",
    ]


def about_haystack(benchmark: Benchmark) -> list[str]:
    """How the texts are made, and where their needles are."""
    options, samples = benchmark.manifest["options"], benchmark.samples
    depth = np.array(samples.column("depth").to_pylist())
    fifths = Counter(min(4, int(each * 5)) for each in depth.tolist())
    words = [len(text.split(" ")) - 1 for text in samples.column("sentence").to_pylist()]
    facts: list[list[Any]] = [
        ["samples", len(benchmark)],
        ["size", options["size"]],
        ["needles in a text", options["needles"]],
        ["sentences in a text, needles included", spread(samples.column("sentences").to_pylist())],
        ["words in a text", spread(words)],
        ["needle in the first fifth of the sentences, the second, ...", ", ".join(str(fifths[n]) for n in range(5))],
        ["seed", options["seed"]],
    ]
    ground_truth = "the value in the needle" if options["truth"] == "value" else "the whole needle"
    return [
        f"# {KINDS['haystack'].title}",
        "",
        'Texts of short sentences with needles between them, "The special magic number for tiger is 48213.", that end in',
        '"The special magic number for tiger is". The model has to continue with the value in the needle; it is compared',
        "with the value of another needle, or, where there is only one, with a value that is not in the text. An",
        f"explanation of the choice should point at the needle. The ground truth is {ground_truth}.",
        "",
        "The texts were made by lrpx. Task: Hsieh et al. (2024), RULER: What's the Real Context Size of Your Long-Context",
        f"Language Models? The sentences of the filler have sha256 `{benchmark.manifest['source']['sha256']}`.",
        "",
        "## Texts",
        "",
        "`samples.parquet` has one row per text: `verb` is the value, `other` the value that it is compared with,",
        "`subject_index` to `subject_end` (exclusive) the words of the ground truth, `attractors` the values of the other",
        "needles.",
        "",
        *table_lines(["", "here"], facts),
        "",
    ]

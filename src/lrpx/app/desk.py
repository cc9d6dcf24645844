"""Answers questions with the one model of the app, and remembers the last explanations.

Nothing here runs twice at a time: ``queue.py`` sees to it. An input is measured before it is computed, so that a long text is
an error message and not a wait. A generated token is explained as the next token of what stands before it, so that every method
can; several generated tokens together by ``Explainer.generate``.
"""

from __future__ import annotations

import io
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError, LrpxError, LrpxWarning, import_optional
from ..explainer import Explainer
from ..explainer.continuation import generate, read_prompt
from ..models.heads import IMAGE_TASKS, TEXT2TEXT
from ..models.provenance import model_identity
from ..models.reader import image_processor_of
from ..models.signature import ModelSignature, task_of
from ..results.explanation import Explanation
from ..results.tokens import Prediction
from ..text.tokenization import Encoded, encode
from .question import Question
from .samples import Samples

LIKELIEST = 24  # tokens that are offered to click on
FORMATS = ["PNG", "JPEG", "WEBP", "GIF", "BMP"]  # of images that are read
MOST_PIXELS = 40_000_000  # of an image
REMEMBERED = 20_000_000  # numbers in the explanations that are remembered: 160 MB


@dataclass(frozen=True)
class Limits:
    """What is computed at most.

    Attributes:
        tokens: Of an input.
        new_tokens: That are generated after it.
    """

    tokens: int = 512
    new_tokens: int = 64

    def __post_init__(self) -> None:
        for name, option in (("tokens", "--max-tokens"), ("new_tokens", "--max-new-tokens")):
            if getattr(self, name) < 1:
                raise InputError(f"{option} {getattr(self, name)}: give a number from 1.")


class Desk:
    """The model, what it was asked last, and the benchmark that can be browsed."""

    def __init__(self, explainer: Explainer, limits: Limits = Limits(), samples: Samples | None = None) -> None:
        self.explainer, self.limits, self.samples = explainer, limits, samples
        self.task = task_of(explainer.model)
        self._remembered: OrderedDict[Question, Explanation] = OrderedDict()

    @property
    def kinds(self) -> list[str]:
        """The kinds of input that the model can read."""
        if self.task in IMAGE_TASKS:
            return ["image"]
        readers = (self.explainer.reader, self.explainer.tokenizer)
        chat = self.generates and any(getattr(reader, "chat_template", None) for reader in readers)
        return ["text", *["chat"] * bool(chat), *["sample"] * (self.samples is not None)]

    @property
    def generates(self) -> bool:
        """Whether the model goes on with a text."""
        return self.task in ("causal", TEXT2TEXT)

    @property
    def by_position(self) -> bool:
        """Whether the user chooses the token whose prediction is explained."""
        return self.task in ("causal", "masked", "token-classification")

    @property
    def reads_images(self) -> bool:
        """Whether images are read, alone or with a text."""
        return image_processor_of(self.explainer.reader) is not None

    @property
    def most_tokens(self) -> int:
        """How many tokens an input may have: by the limit of the app, or by what the model can read."""
        return min(self.limits.tokens, ModelSignature.of(self.explainer.model).context or self.limits.tokens)

    @property
    def model(self) -> str:
        """The name of the model."""
        return str(model_identity(self.explainer.model)["model"])

    def explanation(self, question: Question, method: str) -> Explanation:
        """The answer by one method, remembered or computed.

        Raises:
            LrpxError: It cannot be explained; see ``lrpx.Explainer``.
        """
        key = question.by(method)
        if key in self._remembered:
            self._remembered.move_to_end(key)
            return self._remembered[key]
        with quietly():
            found = self._explained(question, method)
        self._remembered[key] = found
        while len(self._remembered) > 1 and sum(map(_size, self._remembered.values())) > REMEMBERED:
            self._remembered.popitem(last=False)
        return found

    def explanations(self, question: Question) -> list[Explanation]:
        """The answers by all methods of the question that can answer it.

        Raises:
            LrpxError: None can; the error is that of the first.
        """
        found: list[Explanation] = []
        failed: list[Exception] = []
        for method in question.methods:
            try:
                found.append(self.explanation(question, method))
            except (LrpxError, ImportError) as error:
                failed.append(error)
        if not found:
            raise failed[0]
        return found

    def likeliest(self, question: Question) -> list[Prediction]:
        """The tokens that a language model expects where the question is about.

        Nothing for several generated tokens, or one after images, and of other models.
        """
        start, stop = question.span or (0, 1)
        unknown = stop - start > 1 or (question.span and question.images)
        if unknown or self.task not in ("causal", "masked", TEXT2TEXT):
            return []
        self._check_length(question)
        with quietly():
            if question.span is not None:
                return self.explainer.likeliest(count=LIKELIEST, **self._before(question, start))
            given = self._given(question)
            asked = {name: given[name] for name in ("text", "position", "images") if name in given}
            return self.explainer.likeliest(count=LIKELIEST, **asked)

    def generate(self, question: Question, count: int) -> dict[str, Any]:
        """What the model goes on with, greedily: ids, readable text, and which tokens make which piece of it.

        Raises:
            InputError: It cannot go on, or so many tokens are not generated here.
        """
        most = self.limits.new_tokens
        if not 1 <= count <= most:
            more = f" For more, start it with --max-new-tokens {count}." if count > most else ""
            raise InputError(f"{count} new tokens: this app generates from 1 to {most}.{more}")
        self._check_length(question)
        with quietly():
            prompt = self._prompt(question)
            new = generate(self.explainer.model, self.explainer.tokenizer, prompt, count, None)
        return self._reply(prompt, new)

    def reply(self, question: Question) -> dict[str, Any]:
        """The continuation of a question, likewise."""
        self._check_length(question)
        with quietly():
            return self._reply(self._prompt(question), question.continuation)

    def _reply(self, prompt: Encoded, new: tuple[int, ...]) -> dict[str, Any]:
        whole, first = prompt.followed_by(new, self.explainer.tokenizer), len(prompt.token_ids)
        units = [(start - first, end - first, text) for start, end, text in whole.units if start >= first]
        return {"ids": list(new), "units": units}

    # How an explanation is computed

    def _explained(self, question: Question, method: str) -> Explanation:
        for role in ("target", "contrast"):
            if isinstance(given := getattr(question, role), tuple) and self.task != "question-answering":
                raise InputError(f"{role} is {list(given)}: only an answer to a question has a first and a last token.")
        self._check_length(question)
        if question.span is not None:
            return self._of_generated(question, method, *question.span)
        asked = self._given(question)
        asked.setdefault("target", question.target)
        asked.setdefault("contrast", question.contrast)
        found = self.explainer(method=method, **asked)
        assert isinstance(found, Explanation)
        return found

    def _given(self, question: Question) -> dict[str, Any]:
        """The input as arguments of a call."""
        if question.kind not in self.kinds:
            raise InputError(f"{self.model} does not read {question.kind} here, but {', '.join(self.kinds)}.")
        images = [_opened(f"image {i}", file) for i, file in enumerate(question.images, start=1)]
        if question.kind == "image":
            if len(images) != 1:
                raise InputError(
                    f"{len(images)} images are given. Choose one." if images else "no image is given. Choose one."
                )
            return {"text": images[0]}
        if question.kind == "sample":
            assert self.samples is not None  # or it would be no kind
            return self.samples.asked(question)
        given: dict[str, Any] = {"position": question.position} if question.position is not None else {}
        if question.kind == "chat":
            return given | {"text": _chat(question, images)}
        given |= {name: value for name in ("question", "text_pair") if (value := getattr(question, name))}
        given |= {"choices": list(question.choices)} if question.choices else {}
        return given | {"text": question.text} | ({"images": images} if images else {})

    def _prompt(self, question: Question) -> Encoded:
        given = self._given(question)
        return read_prompt(self.explainer.model, self.explainer.reader, given["text"], images=given.get("images"))

    def _before(self, question: Question, start: int) -> dict[str, Any]:
        """What stands before the generated token ``start``, as arguments of a call."""
        prompt, before = self._prompt(question), list(question.continuation[:start])
        if prompt.source:
            return {
                "text": list(prompt.token_ids[: prompt.source]),
                "target_prefix": [*prompt.token_ids[prompt.source :], *before],
            }
        return {"text": [*prompt.token_ids, *before]}

    def _of_generated(self, question: Question, method: str, start: int, stop: int) -> Explanation:
        """The explanation of generated tokens; a single one is the next token after what stands before it."""
        ids = list(question.continuation)
        if stop - start == 1 and not question.images:
            target = ids[start] if question.target is None else question.target
            asked = self._before(question, start) | {"target": target, "contrast": question.contrast}
            found = self.explainer(method=method, **asked)
            assert isinstance(found, Explanation)
            return found
        given = self._given(question)
        if question.contrast is not None:
            raise InputError("several generated tokens are explained together: choose no contrast, or one token.")
        generated = self.explainer.generate(
            given["text"],
            images=given.get("images"),
            continuation=ids[:stop],
            spans=[(start, stop)],
            method=method,  # type: ignore[arg-type]  # a name that was checked
        )
        return generated[0]

    def _check_length(self, question: Question) -> None:
        """Refuse what is longer than this app computes.

        Raises:
            InputError: It is; the error says how long it is.
        """
        if question.kind == "image":
            return
        if self.generates:
            count = len(self._prompt(question).token_ids)
        else:
            given = self._given(question)
            parts = [given["text"], given.get("question"), given.get("text_pair"), *given.get("choices", ())]
            count = sum(len(encode(self.explainer.tokenizer, part)[0].token_ids) for part in parts if part)
        count += question.span[1] if question.span else 0
        if count > self.most_tokens:
            context = ModelSignature.of(self.explainer.model).context
            more = f", or start the app with --max-tokens {count}" * (context is None or count <= context)
            raise InputError(
                f"the input has {count:,} tokens, and this app explains up to {self.most_tokens:,}. Shorten it{more}."
            )


@contextmanager
def quietly() -> Iterator[None]:
    """No warnings of lrpx: the page shows the notes of an explanation, which say the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LrpxWarning)
        yield


def _size(e: Explanation) -> int:
    """How many numbers an explanation holds."""
    arrays = (e.relevance, e.by_layer, e.by_attention, e.by_mlp, e.by_head, *e.layers.values())
    return sum(np.size(array) for array in arrays if array is not None) + sum(len(image.png) // 8 for image in e.images)


def _chat(question: Question, images: list[Any]) -> list[dict[str, Any]]:
    """Chat messages; images stand before the text of the first message of the user."""
    if not question.messages:
        raise InputError("the chat is empty. Write a message.")
    chat: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in question.messages]
    if images:
        first = next((message for message in chat if message["role"] == "user"), chat[0])
        parts = [{"type": "image", "image": image} for image in images]
        first["content"] = [*parts, {"type": "text", "text": first["content"]}]
    return chat


def _opened(name: str, file: bytes) -> Any:
    """A picture, read by a decoder for one of ``FORMATS``.

    Raises:
        InputError: It is none, or a very large one.
        ImportError: Pillow is not installed.
    """
    image = import_optional("PIL.Image", "reading images", extra="vision")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", image.DecompressionBombWarning)
            opened = image.open(io.BytesIO(file), formats=FORMATS)
        width, height = opened.size
        if width * height > MOST_PIXELS:
            raise InputError(f"{name} has {width} x {height} pixels: at most {MOST_PIXELS:,} are read.")
        return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} cannot be read as {', '.join(FORMATS)} ({error}).") from None

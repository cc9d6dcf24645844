"""``lrpx check``: does this model, as it is on this machine, keep what the rules promise?

1. The forward pass under each rule set returns the plain model's logits, bit for bit.
2. Every block's normalisers and attention were met, and no operation carried gradient through unknown.
3. Under LRP, with biases set to zero (and restored), relevance adds up to the value. The only loss is what other constants
   take, such as position embeddings or the 1 in gpt-oss's ``(up + 1) * glu``; it is measured.
4. Relevance flow from token to token, computed by formulas, is what a backward pass per token gives.
5. All but the last once more for a text with an image, if the model reads images and its processor is there.

The inputs are random (``check_inputs.py``). Where none is known that the model reads, nothing is said about it.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .check_inputs import CannotCheck, batch_with_picture, random_batch
from .errors import InputError, LrpxError, UnsupportedModelError, in_one_line
from .models.placement import is_offloaded, named_parameters, offloaded_as
from .models.reader import image_processor_of, tokenizer_of
from .models.signature import takes, task_of
from .models.usable import usable_model
from .passes.attribution import run
from .passes.dispatch import PassRunner
from .passes.flow import Keep, flow_of
from .passes.hidden_states import layer_count
from .passes.scores import read_scores
from .passes.spec import PassSpec
from .passes.validation import about_cuts, check_model, own_failures_named
from .propagation.propagate import Propagation, propagate
from .propagation.rulesets import RULESETS
from .recognition.call import tensors_in
from .tasks.image_score import TEXT, PairScores
from .text.batching import Batch

# How far a sum over a whole model may be off, relative to the sum of absolute relevances.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


@dataclass
class Report:
    """What ``check`` found.

    Attributes:
        holds: Whether the model was checked, and all of it holds.
        lines: The findings, each with whether it holds; ``None`` for what is only told.
        checked: Whether an input was found that the model reads; otherwise nothing is known, and a line says why.
        hits: How often a rule was applied, by rule set and kind of operation.
        sums: Where -> sum of the LRP relevance there, biases zeroed, beside ``value``.
        value: The explained logit with biases zeroed.
        absorbed: What position embeddings and other constants took of it.
    """

    lines: list[tuple[bool | None, str]] = field(default_factory=list)
    checked: bool = True
    hits: dict[str, Counter[str]] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    value: float | None = None
    absorbed: float | None = None

    @property
    def holds(self) -> bool:
        """Whether there are findings, and none failed."""
        return self.checked and all(ok is not False for ok, _ in self.lines)


def check(model: PreTrainedModel, reader: Any = None, *, n_tokens: int = 16, seed: int = 0) -> Report:
    """Verify a model on a random input; see the top of this file. The model is left as it was.

    Args:
        model: The one to verify.
        reader: Its processor, if it reads images: those in a text are checked too.
        n_tokens: The length of a text.
        seed: Of all that is random.
    """
    report = Report()
    try:
        model = usable_model(model)
        check_model(model, "lrp")
        batch = random_batch(model, reader, n_tokens, seed)
        _check_forward(model, batch, report)
        complete = _complete(model, batch)
        for name in RULESETS:
            mode = run(model, batch, name, complete).mode
            report.hits[name] = mode.hits
        if +mode.cuts:
            report.lines.append((None, about_cuts(type(model).__name__, mode)))
        report.lines.append(
            (True, "every block's normalisers and attention were met; no unknown operation carried gradient")
        )
        _check_sums(model, batch, complete, report)
        if task_of(model) in ("causal", "masked"):
            _check_flow(model, batch, report)
        if task_of(model) == "causal" and takes(model, "pixel_values"):
            _check_images(model, reader, report)
    except CannotCheck as error:
        report.checked = False
        report.lines.append((None, str(error)))
    except LrpxError as error:
        report.lines.append((False, str(error)))
    return report


def _check_images(model: PreTrainedModel, reader: Any, report: Report) -> None:
    if image_processor_of(reader) is None or tokenizer_of(reader) is None:
        report.lines.append((None, "it reads images too, which are not checked: that needs its processor"))
        return
    try:
        batch = batch_with_picture(model, reader)
        with biases_zeroed(model) as zeroed:
            result = run(model, batch, "lrp", mode=Accounting)
    except LrpxError as error:
        report.lines.append((None, f"images cannot be explained: {error}"))
        return
    _check_forward(model, batch, report, "with an image, the ")
    assert isinstance(result.mode, Accounting)
    parts = [hidden.state.double() * hidden.gradient.double() for hidden in result.hidden.values()]
    total, size = (float(sum(part.sum() for part in each)) for each in (parts, map(torch.abs, parts)))
    missing = float(result.values[0]) - total - result.mode.absorbed
    report.lines.append(
        (
            abs(missing) <= TOLERANCE.get(model.dtype, 1e-3) * size,
            f"with an image, LRP relevance of text and image adds up to the logit, {zeroed} biases zeroed: {total:.6g} + "
            f"{result.mode.absorbed:.6g} in other constants = {result.values[0]:.6g}, off by {missing:.1e}",
        )
    )


def _check_forward(model: PreTrainedModel, batch: Batch, report: Report, where: str = "") -> None:
    def forward() -> Tensor:
        output: Tensor = model(**batch.inputs)[0] if batch.readout is None else read_scores(model, batch, batch.readout)
        return output

    plain = _plain(model, batch, forward)
    for name in RULESETS:
        with torch.inference_mode(False), torch.enable_grad(), propagate(model, name):
            logits = forward().detach()
        same = torch.equal(logits, plain)
        off = "" if same else f", largest difference {float((logits - plain).abs().max()):.1e}"
        report.lines.append((same, f"{where}forward pass under {name} is the plain model's, bit for bit{off}"))


def _plain(model: PreTrainedModel, batch: Batch, forward: Callable[[], Tensor]) -> Tensor:
    """What the model gives without rules.

    Raises:
        CannotCheck: It does not read the input, or its output is not what its head says.
    """
    try:
        with own_failures_named(model, batch.inputs), torch.no_grad():
            return forward()
    except UnsupportedModelError as error:
        raise CannotCheck(str(error)) from error
    except (AttributeError, KeyError) as error:
        if batch.readout is None:
            raise
        said = f"what {type(model).__name__} returns is not read: {in_one_line(error, 200)}"
        raise CannotCheck(said) from error


def _check_sums(model: PreTrainedModel, batch: Batch, complete: Sequence[str], report: Report) -> None:
    with biases_zeroed(model, own=batch.of_images) as zeroed:
        # No block of two stacks has all that passes, nor has one of the stages of a model of images.
        blocks = [] if batch.sources or batch.of_images else _blocks_that_run(model, batch)
        result = run(model, batch, "lrp", [*complete, *blocks], mode=Accounting)
    assert isinstance(result.mode, Accounting)
    report.value, report.absorbed = float(result.values[0]), result.mode.absorbed
    size = 0.0
    for name, hidden in result.hidden.items():
        relevance = hidden.state.double() * hidden.gradient.double()
        report.sums[name] = float(relevance.sum())
        size = max(size, float(relevance.abs().sum()))
    total = sum(report.sums[place] for place in complete)
    missing = report.value - total - report.absorbed
    tolerance = TOLERANCE.get(model.dtype, 1e-3)
    where = " and ".join(_WHERE[place] for place in complete)
    what = "biases, positions and tokens of its own" if batch.of_images else "biases"
    explained = "the score" if isinstance(batch.readout, PairScores) else "the logit"
    explained = "a number of its mean embedding" if task_of(model) == "feature-extraction" else explained
    report.lines.append(
        (
            abs(missing) <= tolerance * size,
            f"LRP relevance {where} adds up to {explained}, {zeroed} {what} zeroed: {total:.6g} + "
            f"{report.absorbed:.6g} in positions and other constants = {report.value:.6g}, off by {missing:.1e}",
        )
    )


def _check_flow(model: PreTrainedModel, batch: Batch, report: Report) -> None:
    if is_offloaded(model):
        report.lines.append((None, "relevance flow is not checked: each token would load all offloaded weights anew"))
        return
    spec = PassSpec("attnlrp", ("embedding",))
    try:
        found, slow = (
            flow_of(PassRunner(model), batch, spec, Keep(1.0), explicit=explicit) for explicit in (True, False)
        )
    except UnsupportedModelError as error:
        report.lines.append((None, f"relevance flow is not available: {error}"))
        return
    off, largest = 0.0, float(np.abs(found.relevance).max())
    for step, other in zip(found.steps, slow.steps, strict=True):
        edges = np.zeros((2, *[found.relevance.shape[1]] * 2))
        for matrix, each in zip(edges, (step, other), strict=True):
            matrix[tuple(each.edges.T)] = each.relevance
        off = max(off, float(np.abs(edges[0] - edges[1]).max()))
    fine: bool | None = off <= TOLERANCE.get(model.dtype, 1e-3) * largest
    if not fine and model.dtype in (torch.bfloat16, torch.float16):
        fine = None  # large hidden states whose products with gradients cancel have as large an error
    places = f"{len(found.places)} places from {found.places[0]} to {found.places[-1]}"
    report.lines.append(
        (
            fine,
            f"relevance flow between {places} is what a backward pass per token gives, off by {off:.1e} of {largest:.2g}",
        )
    )
    report.lines += [(None, note) for note in found.notes if "ways around" in note]


def _blocks_that_run(model: PreTrainedModel, batch: Batch) -> list[str]:
    """The names of the transformer blocks: the first list of as many modules as the configuration has layers that runs."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == layer_count(model):
            names = [f"{name}.{i}" for i in range(len(module))]
            try:
                run(model, batch, {}, ["embedding", *names])
            except LrpxError:
                continue
            return names
    return []


OWN = re.compile(r"cls_token|class_embedding|distillation_token|register_tokens|mask_token|pos(ition)?_?emb")


def _complete(model: PreTrainedModel, batch: Batch) -> list[str]:
    """The places where relevance is complete, taken together."""
    if batch.of_images:
        return ["pixels", TEXT] if "input_ids" in batch.inputs else ["pixels"]
    if "input_ids" not in batch.inputs:  # an image or a sound has no word embeddings
        return ["input"]
    try:
        run(model, batch, {}, ["embedding"])
    except InputError:  # the words are looked up elsewhere (Florence 2)
        return ["input"]
    return ["embedding"]


_WHERE = {
    "embedding": "at the embedding",
    "pixels": "at the pixels",
    "input": "of what enters the first blocks",
    TEXT: "of what enters the text's first block",
}


@contextmanager
def biases_zeroed(model: nn.Module, *, own: bool = False) -> Iterator[int]:
    """Every parameter whose name ends in ``bias`` is zero inside the block, and as it was afterwards. Yields how many.

    ``own``: and the tokens and positions that a model of images adds of its own, and the means of batch norms.
    """

    def is_constant(name: str) -> bool:
        return name.endswith("bias") or (own and OWN.search(name) is not None)

    biases = [p for name, p in named_parameters(model) if is_constant(name)]
    biases += [b for name, b in model.named_buffers() if own and name.endswith("running_mean")]
    kept = [(p, p.detach().clone()) for p in biases if not p.is_meta]
    try:
        with torch.no_grad():
            for p, _ in kept:
                p.zero_()
        with offloaded_as(model, lambda name, p: torch.zeros_like(p) if is_constant(name) else p):
            yield len(biases)
    finally:
        with torch.no_grad():
            for p, value in kept:
                p.copy_(value)


class Accounting(Propagation):
    """A propagation that also adds up what constant summands take of the relevance that passes them.

    Where ``y = x + c`` with a constant ``c``, relevance ``c * dy`` ends there. Biases inside fused operations (``linear``,
    ``layer_norm``) are not seen.
    """

    absorbed = 0.0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = super().__torch_function__(func, types, args, kwargs)
        name = getattr(func, "__name__", "").strip("_")
        if (
            name in ("add", "radd", "iadd", "sub", "rsub", "isub")
            and isinstance(output, Tensor)
            and output.requires_grad
        ):
            constants = [i for i, a in enumerate(args[:2]) if not (isinstance(a, Tensor) and a.requires_grad)]
            if len(constants) == 1 and tensors_in(args):
                constant, first = args[constants[0]], constants[0] == 0
                # a - b and rsub(b, a): the one that is subtracted is the second, or for rsub the first.
                sign = -1 if "sub" in name and first == (name == "rsub") else 1
                itself = weakref.ref(output)

                def note(gradient: Tensor | None) -> None:
                    # What enters the first block may have been cut off here since: then the constant came before it.
                    cut = (sum_ := itself()) is not None and sum_.is_leaf
                    if gradient is not None and not cut:
                        self.absorbed += float((sign * gradient * constant).double().sum())

                output.register_hook(note)
        return output

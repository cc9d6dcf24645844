"""Times LXT, in a process of its own: ``lxt_worker.py JOB RESULT``, both JSON files; the other scripts call it.

LXT comes from ``PYTHONPATH`` and is used as its README says: relevance at the input embeddings, from one forward and one
backward pass. It gets what helps it: frozen parameters, no cache, and logits of the explained position only where its model can.

The job holds ``mode`` (``efficient`` or ``explicit``), ``family``, ``config``, ``dtype``, ``device`` and ``samples`` (``ids``,
``position``, ``target``, ``contrast``). It may hold ``warm_up`` (rounds over one sample of each length), ``rounds`` (timed ones),
``weights`` (a file for ``load_state_dict``) and ``relevance`` (of how many samples to return it).

The result holds the ``seconds`` of each sample and round, ``peak_mib`` of the longest, ``warm_up_s`` and the versions; or
``failed``, and ``unsupported`` where this transformers is not for LXT's model.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import Sample, in_turns, made, one_of_each_length, peak, seconds_of
from torch import Tensor

CLASSES = {"llama": "LlamaForCausalLM", "bert": "BertForMaskedLM"}
OLDER: dict[str, dict[str, Any]] = {"llama": {}, "bert": {"position_embedding_type": "absolute"}}  # was a default once


def main(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    Path(result_file).write_text(json.dumps(found(job)))


def found(job: dict[str, Any]) -> dict[str, Any]:
    import transformers

    facts = {"transformers": transformers.__version__, "torch": torch.__version__, "mode": job["mode"]}
    try:
        model = {"efficient": efficient, "explicit": explicit}[job["mode"]](job)
    except (ImportError, ValueError, AttributeError, TypeError, KeyError) as error:
        return {**facts, "unsupported": True, "failed": f"{type(error).__name__}: {error}"}
    facts["attn_implementation"] = model.config._attn_implementation
    device = job["device"]
    samples = [Sample(**sample) for sample in job["samples"]]

    def run(sample: Sample) -> Tensor:
        return relevance(model, job["mode"], sample)

    def warm_up() -> None:
        for _ in range(job.get("warm_up", 2)):
            for sample in one_of_each_length(samples):
                run(sample)

    try:
        facts["warm_up_s"] = seconds_of(warm_up, device)
        facts["seconds"] = in_turns({"lxt": run}, samples * job.get("rounds", 1), device)["lxt"]
        longest = max(samples, key=lambda sample: len(sample.ids))
        facts["peak_mib"] = peak(lambda: run(longest), device)
    except torch.OutOfMemoryError:
        return {**facts, "failed": "out of memory"}
    facts["relevance"] = [run(sample).tolist() for sample in samples[: job.get("relevance", 0)]]
    return facts


def efficient(job: dict[str, Any]) -> Any:
    """A model of the running transformers, patched by ``lxt.efficient``."""
    family = job["family"]
    modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    vision_transformer = types.ModuleType("vision_transformer")
    vision_transformer.nn = torch.nn  # type: ignore[attr-defined]
    stand_in("torchvision", "models", vision_transformer=vision_transformer)  # in its list of models
    importlib.import_module("lxt.efficient").monkey_patch(modeling)
    return model_of(getattr(modeling, CLASSES[family]), job, "sdpa")


def explicit(job: dict[str, Any]) -> Any:
    """LXT's own model with its AttnLRP rules. Its attention is written out, whatever the configuration says."""
    quantised = {name: type(name, (torch.nn.Module,), {}) for name in ("Linear4bit", "Linear8bitLt")}
    stand_in("bitsandbytes", "nn", **quantised)  # in the table of rules of its Llama
    try:
        module = importlib.import_module(f"lxt.explicit.models.{job['family']}")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("lxt."):
            raise
        module = importlib.import_module(f"lxt.models.{job['family']}")  # before LXT 2.0
    model = model_of(getattr(module, CLASSES[job["family"]]), job, "eager")
    module.attnlrp.register(model)
    return model


def stand_in(package: str, module: str, **attributes: Any) -> None:
    """Let LXT import a package that it names without using it here, if the package is missing.

    Call it after importing transformers, which looks whether the real one is there.
    """
    if importlib.util.find_spec(package) is None:
        made_up = types.ModuleType(f"{package}.{module}")
        vars(made_up).update(attributes)
        parent = types.ModuleType(package)
        setattr(parent, module, made_up)
        sys.modules |= {package: parent, made_up.__name__: made_up}


def model_of(cls: Callable[[Any], Any], job: dict[str, Any], attention: str) -> Any:
    import transformers

    config_class = {"llama": transformers.LlamaConfig, "bert": transformers.BertConfig}[job["family"]]
    config = config_class(**job["config"], attn_implementation=attention, **OLDER[job["family"]])
    model = made(lambda: cls(config), job["device"], getattr(torch, job["dtype"])).requires_grad_(False)
    if job.get("weights"):
        given = torch.load(job["weights"])
        model.load_state_dict({name: given.get(name, own) for name, own in model.state_dict().items()})
        assert all(name in given for name, _ in model.named_parameters()), "the weights have other names"
    return model


def relevance(model: Any, mode: str, sample: Sample) -> Tensor:
    """Of every token for ``logit[target] - logit[contrast]``, on the CPU as in LXT's examples."""
    ids = torch.tensor([sample.ids], device=model.device)
    embedded = model.get_input_embeddings()(ids).requires_grad_()
    arguments: dict[str, Any] = {"inputs_embeds": embedded}
    position = sample.position
    if hasattr(model, "lm_head"):
        older = "num_logits_to_keep" in inspect.signature(model.forward).parameters  # transformers 4.48 and before
        keep = "num_logits_to_keep" if older else "logits_to_keep"
        arguments |= {"use_cache": False, keep: len(sample.ids) - position}
        position = 0
    logits = model(**arguments).logits[0, position]
    target, contrast = logits[sample.target], logits[sample.contrast]
    if mode == "explicit":  # starts from relevance, and passes relevance
        torch.autograd.backward([target, contrast], [target.detach(), -contrast.detach()])
        return embedded.grad.float().sum(-1)[0].cpu()
    (target - contrast).backward()
    return (embedded * embedded.grad).float().sum(-1)[0].detach().cpu()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A prompt and its continuation as ids: what the model goes on with by itself, or what is given."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from ..errors import InputError, check_names
from ..models.heads import TEXT2TEXT
from ..models.lock import lock_of
from ..models.placement import entry_device
from ..models.positions import fresh_rotations
from ..models.reader import tokenizer_of
from ..models.signature import ModelSignature, filler
from ..passes.dispatch import PassRunner
from ..passes.validation import own_failures_named
from ..tasks.image_text import encode_with_images, images_of_each
from ..tasks.sources import check_no_images, encode_source, split_sources
from ..tasks.text2text import continuation_ids, one_prefix_each, read_pair
from ..text.batching import Item, pad
from ..text.given import split
from ..text.targets import resolve_continuation
from ..text.tokenization import Encoded, encoder
from .spelling import misspelt_continuation


def read_prompt(
    model: PreTrainedModel,
    reader: Any,
    prompt: Any,
    target_prefix: Any = None,
    config: Any = None,
    images: Any = None,
) -> Encoded:
    """A prompt, one text with its images, as tokens; for an encoder-decoder model followed by those with which it begins.

    Raises:
        InputError: There is none, or several, or the model is not one that goes on with a text.
    """
    if prompt is None:
        raise InputError(
            "no prompt given.",
            python="Type: explainer.generate(prompt, max_new_tokens=20).",
            command='Type: lrpx generate "The keys to the cabinet".',
        )
    signature, tokenizer = ModelSignature.of(model), tokenizer_of(reader)
    source = signature.source if signature.source is not None and signature.source.features else None
    singles, several = split(prompt) if source is None else split_sources(source, prompt)
    if several and len(singles) != 1:
        raise InputError(f"{len(singles)} prompts: generate() takes one. Call it once for each.")
    task = signature.task
    if source is not None:
        check_no_images(model, images)
    if images is not None and task not in ("causal", TEXT2TEXT):
        raise InputError(f"images= is for models that go on with a text, and {type(model).__name__} is for {task}.")
    [given] = images_of_each(images, False, 1)
    if task == TEXT2TEXT:
        [prefix] = one_prefix_each(target_prefix, 1)
        if source is not None:
            encoded = encode_source(model, reader, singles[0])
        else:
            encoded = encode_with_images(model, reader, singles[0], given, encoder(tokenizer))
        return read_pair(model, tokenizer, encoded, prefix, config)
    if target_prefix is not None:
        raise InputError(
            f"target_prefix= is for encoder-decoder models, and {type(model).__name__} reads one text. Put it at the end of the "
            "prompt."
        )
    if task != "causal":
        what = "fills in masks" if task == "masked" else f"is for {task}"
        raise InputError(
            f"{type(model).__name__} {what} and does not go on with a text.",
            python="Use explainer(text).",
            command="What it predicts is explained by lrpx explain.",
            app="Press “Explain”.",
        )
    return encode_with_images(model, reader, singles[0], given, encoder(tokenizer)).without_closing()


def generate(
    model: PreTrainedModel, tokenizer: Any, prompt: Encoded, max_new_tokens: int | None, config: Any
) -> tuple[int, ...]:
    """The ids with which the model goes on, by ``model.generate``: greedily, unless ``config`` says otherwise.

    Raises:
        InputError: Arguments that cannot be used, or the text would become too long for the model.
    """
    if isinstance(config, Mapping):
        try:
            check_names(config, vars(GenerationConfig()))
        except InputError as error:
            raise error.at("generation_config") from None
        if max_new_tokens not in (None, config.get("max_new_tokens", max_new_tokens)):
            raise InputError(
                "max_new_tokens= is given twice, and in generation_config it is another number. Leave one out."
            )
        config = GenerationConfig(**config)
    if config is not None and not isinstance(config, GenerationConfig):
        raise InputError(
            f"generation_config is {type(config).__name__}. Give a GenerationConfig of transformers, or a dictionary."
        )
    if config is None:
        config = copy.deepcopy(model.generation_config)
        greedy = {"do_sample": False, "num_beams": 1, "temperature": None, "top_p": None, "top_k": None, "min_p": None}
        for name, value in greedy.items():
            setattr(config, name, value)
    else:
        config = copy.deepcopy(config)
        for name in ("eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id"):
            if getattr(config, name) is None:
                setattr(config, name, getattr(model.generation_config, name))
    wanted = config.max_new_tokens if max_new_tokens is None else max_new_tokens
    if wanted is None:
        raise InputError("say how much to generate, max_new_tokens=20, or what to explain, continuation=.")
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise InputError(f"max_new_tokens={wanted!r}: give a number of tokens from 1.")
    if (config.num_return_sequences or 1) > 1:
        raise InputError(
            f"num_return_sequences={config.num_return_sequences}: one continuation is explained at a time."
        )
    source, read = prompt.token_ids[: prompt.source], prompt.token_ids[prompt.source :]
    length, signature = len(read), ModelSignature.of(model)
    limits = ((signature.context, "can read"), (signature.made_for, "was made for, by its configuration"))
    for most, why in limits:
        if most is not None and length + wanted > most:
            fewer = f" max_new_tokens={most - length} is the most." if most > length else ""
            raise InputError(
                f"{length} tokens of the {'target' if source else 'prompt'} and max_new_tokens={wanted} are more than the {most} "
                f"tokens that {signature.name} {why}. Shorten one of them.{fewer}"
            )
    config.max_new_tokens, config.max_length, config.return_dict_in_generate = wanted, None, False
    if config.pad_token_id is None:
        config.pad_token_id = filler(model)
    ids = torch.tensor([source or read], device=entry_device(model))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if source:
        config.decoder_start_token_id = read[0]  # or else it would be put before what the decoder has read
        inputs["decoder_input_ids"] = torch.tensor([read], device=entry_device(model))
    if prompt.image_inputs:
        last = len(prompt.token_ids) - 1
        item = Item(prompt.token_ids, last, extras=prompt.extras, images=prompt.image_inputs, source=prompt.source)
        inputs = pad([item], model).inputs
        inputs.pop("decoder_attention_mask", None)  # the decoder reads all that it has written
    # Some classes of encoder-decoder models have a ``generate`` of their own around this one, with other arguments.
    run = partial(GenerationMixin.generate, model) if source else model.generate
    with lock_of(model), own_failures_named(model, inputs), torch.no_grad(), fresh_rotations(model):
        found = run(**inputs, generation_config=config, tokenizer=tokenizer)  # type: ignore[operator]
    new = tuple(found[0, length:].tolist())
    if not new:
        raise InputError(f"{type(model).__name__} generated nothing after this prompt.", python="Give a continuation=.")
    return new


def continuation_of(
    runner: PassRunner, prompt: Encoded, given: Any, tokenizer: Any
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """A given continuation as ids, and warnings about it.

    Raises:
        InputError: It is empty, or changes the tokens of the prompt.
    """
    signature, item = ModelSignature.of(runner.model), Item(prompt.token_ids, len(prompt.token_ids) - 1)
    if prompt.source:
        return continuation_ids(given, prompt, tokenizer, signature.vocabulary), ()
    ids = resolve_continuation(given, "continuation", prompt, tokenizer, signature.vocabulary)
    item = replace(item, extras={name: v for name, v in prompt.extras.items() if name in signature.extras})
    return ids, misspelt_continuation(runner, tokenizer, prompt, item, given, ids)

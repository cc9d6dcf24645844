"""Every table of transformers' auto classes: which sweep is about it, or why none is.

A table that a new transformers brings, or a model type that it adds to one of these, is looked at by nobody: then
``tests/test_supported_models.py`` fails, and says what to do.
"""

from __future__ import annotations

import tiny
import tiny_heads
import tiny_image_text
import tiny_images
from transformers.models.auto import modeling_auto

SWEPT = {
    "CAUSAL_LM": "next token",
    "MASKED_LM": "masked token",
    "SEQ_TO_SEQ_CAUSAL_LM": "source to target",
    "SPEECH_SEQ_2_SEQ": "sound to text",
    "IMAGE_TEXT_TO_TEXT": "images and text",
    "IMAGE_CLASSIFICATION": "image",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "image-text score",
    "SEQUENCE_CLASSIFICATION": "label of a text",
    "TOKEN_CLASSIFICATION": "label of a token",
    "QUESTION_ANSWERING": "answer",
    "MULTIPLE_CHOICE": "choice",
    "TEXT_ENCODING": "similarity",
}
"""Table, without ``MODEL_FOR_`` and ``_MAPPING_NAMES`` -> the column of the page."""

_SOUND = "sound with labels, or as the output; sound as the source of text is explained"
_BOXES = "boxes, masks, depths, poses or other places in an image, not one score"
_TIME = "numbers over time or decisions, not text or images"
_BODY = "no task: bodies without a head, or heads for training alone"
_PAGES = "pages with the places of words, tables, or answers as labels; refused by name"
OUTSIDE = {
    **dict.fromkeys(
        "AUDIO_CLASSIFICATION AUDIO_FRAME_CLASSIFICATION AUDIO_XVECTOR CTC RNNT TDT TEXT_TO_SPECTROGRAM TEXT_TO_WAVEFORM".split(),
        _SOUND,
    ),
    **dict.fromkeys(
        "DEPTH_ESTIMATION IMAGE_MATTING IMAGE_SEGMENTATION IMAGE_TO_IMAGE INSTANCE_SEGMENTATION KEYPOINT_DETECTION "
        "KEYPOINT_MATCHING MASK_GENERATION NORMAL_ESTIMATION OBJECT_DETECTION POINTMAP_ESTIMATION POSE_ESTIMATION "
        "SEMANTIC_SEGMENTATION UNIVERSAL_SEGMENTATION ZERO_SHOT_OBJECT_DETECTION TEXT_RECOGNITION TABLE_RECOGNITION".split(),
        _BOXES,
    ),
    **dict.fromkeys("TIME_SERIES_CLASSIFICATION TIME_SERIES_PREDICTION TIME_SERIES_REGRESSION DECISION".split(), _TIME),
    **dict.fromkeys(
        "BACKBONE IMAGE CAUSAL_IMAGE_MODELING MASKED_IMAGE_MODELING NEXT_SENTENCE_PREDICTION PRETRAINING".split(), _BODY
    ),
    **dict.fromkeys("DOCUMENT_QUESTION_ANSWERING TABLE_QUESTION_ANSWERING VISUAL_QUESTION_ANSWERING".split(), _PAGES),
    "VIDEO_CLASSIFICATION": "videos",
    "RETRIEVAL": "many vectors for a page, compared token by token; the similarity of two texts is explained",
    "MULTIMODAL_LM": "the models of images and text, and of sound and text, once more; sound in a text is not explained",
}
"""Table -> why no sweep is about it."""

_LEFT = {
    **tiny.SKIPPED,
    **tiny_heads.SKIPPED,
    **tiny_images.SKIPPED,
    **{f"vision:{name}": why for name, why in tiny_image_text.NOT_BUILT.items()},
    "encoding:squeezebert": "its blocks keep hidden states as [batch, width, tokens]: explained at the embedding",
    "encoding:reformer": "it hashes its attention and writes its own backward pass",
}
_KIND = {
    "CAUSAL_LM": "causal",
    "MASKED_LM": "masked",
    "IMAGE_TEXT_TO_TEXT": "vision",
    "IMAGE_CLASSIFICATION": "image",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "score",
    "SEQUENCE_CLASSIFICATION": "text-classification",
    "TOKEN_CLASSIFICATION": "token-classification",
    "QUESTION_ANSWERING": "question-answering",
    "MULTIPLE_CHOICE": "multiple-choice",
    "TEXT_ENCODING": "encoding",
}
OTHERWISE_SKIPPED = {"MULTIMODAL_LM": ("qwen2_5_omni", "qwen3_omni_moe")}
"""Model types of ``MULTIMODAL_LM`` that are in no other table: their thinkers are."""


def tables() -> dict[str, dict[str, object]]:
    """Every table of the installed transformers: name -> model type -> class."""
    begin, end = "MODEL_FOR_", "_MAPPING_NAMES"
    names = [name for name in dir(modeling_auto) if name.startswith(begin) and name.endswith(end)]
    return {name[len(begin) : -len(end)]: dict(getattr(modeling_auto, name)) for name in names}


def left_out(table: str) -> dict[str, str]:
    """Of a table that is swept: model types that are not built -> why."""
    begin = f"{_KIND.get(table)}:"
    return {family.removeprefix(begin): why for family, why in _LEFT.items() if family.startswith(begin)}

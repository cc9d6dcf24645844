"""Model types that cannot be explained correctly, with the reason a user reads. Everything else is tried and checked."""

REFUSED: dict[str, str] = {
    "blt": "it groups bytes into patches before its blocks, so tokens and hidden states do not match",
    "cpmant": "it puts prompt tokens of its own before the text, so tokens and hidden states do not match",
    "imagegpt": "it reads the colours of an image as ids, one after the other",
    "diffusion_gemma": "it fills in a canvas of noise, and predicts no next token",
    "dia": "it writes audio codes of several channels, not text",
    "musicgen_decoder": "it reads audio codes from several codebooks, not text",
    "musicgen_melody_decoder": "it reads audio codes from several codebooks, not text",
    "pi0": "it predicts what a robot does, not text",
    "perceiver": "it reads its tokens into latent vectors, so tokens and hidden states do not match",
    "pop2piano": "it reads sound and writes notes, not text",
    "prophetnet": "it predicts from several streams of hidden states at once",
    "reformer": "it hashes its attention and writes its own backward pass",
    "udop": "it reads where words stand on a page and adds the patches there to them, so image and text cannot be told apart",
    "xlnet": "it keeps hidden states as [tokens, batch, width] and predicts in two streams",
    "yoso": "it hashes its attention and writes its own backward pass",
}

REFUSED_WITH_IMAGES: dict[str, str] = {
    "git": "it puts the features of the image before the text, so tokens and hidden states do not match",
}
"""Model types that cannot be explained with an image, with the reason; their text alone can."""


_PAGES = "it reads where words stand on a page, and lrpx gives it text alone"
REFUSED_HEADS: dict[str, str] = {
    **dict.fromkeys(("bros", "layoutlm", "layoutlmv2", "layoutlmv3", "lilt"), _PAGES),
    "canine": "it reads characters by hashes and makes fewer hidden states than characters, so the two do not match",
    **dict.fromkeys(("blip", "lxmert", "vilt"), "it answers questions about images, and lrpx gives it text alone"),
    "markuplm": "it reads the markup of a page, and lrpx gives it text alone",
    "mra": "its attention is a kernel that hides its operations",
    "tapas": "it reads tables, and lrpx gives it text alone",
}
"""Model types of which classifiers and models for question answering are refused, beside those of ``REFUSED``."""


def why_refused(model_type: str, *, language_model: bool) -> str | None:
    """Why models of this type cannot be explained, as the end of a sentence; ``None`` if that is not known."""
    return REFUSED.get(model_type) or (None if language_model else REFUSED_HEADS.get(model_type))

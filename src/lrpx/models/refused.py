"""Model types that cannot be explained correctly, with the reason a user reads. Everything else is tried and checked."""

REFUSED: dict[str, str] = {
    "blt": "it groups bytes into patches before its blocks, so tokens and hidden states do not match",
    "cpmant": "it puts prompt tokens of its own before the text, so tokens and hidden states do not match",
    "musicgen_decoder": "it reads audio codes from several codebooks, not text",
    "musicgen_melody_decoder": "it reads audio codes from several codebooks, not text",
    "perceiver": "it reads its tokens into latent vectors, so tokens and hidden states do not match",
    "prophetnet": "it predicts from several streams of hidden states at once",
    "reformer": "it hashes its attention and writes its own backward pass",
    "xlnet": "it keeps hidden states as [tokens, batch, width] and predicts in two streams",
    "yoso": "it hashes its attention and writes its own backward pass",
}

"""Networks that models of several families have: their configurations, and billions of parameters."""

CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "projection_dim": 768}
VAE = {"vae": 0.08}
VIDEO_VAE = {"vae": 0.13}
VIDEO_VAE_2 = {"vae": 0.7}  # Wan 2.2's
CLIP_TEXT = {"vae": 0.08, "text_encoder": 0.12}
T5_XXL = (
    "T5EncoderModel",
    {
        "vocab_size": 32128, "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64,
        "feed_forward_proj": "gated-gelu",
    },
)  # fmt: skip
QWEN3_HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
QWEN3_4B_TEXT = {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, **QWEN3_HEADS}
QWEN3_4B = ("Qwen3ForCausalLM", {**QWEN3_4B_TEXT, "tie_word_embeddings": True})
PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "head_dim": 64, "patch_size": 14,
}  # fmt: skip

"""What diffusion families are built from: noise, losses, samplers, latents, text encoders, pipelines, hub."""

"""Model files as people download them: safetensors, whole, sharded or quantised, and GGUF; read tensor by tensor."""

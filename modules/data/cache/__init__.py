"""Step 2, the cache: `keys` names every view of an image, `cache` finds what is missing, `encode_batches` groups it,
`encode` reads, crops and encodes it, `shards` and `manifest` store it, `reader` reads it back."""

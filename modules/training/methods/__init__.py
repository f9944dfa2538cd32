"""What is trained: submodules of the model, adapters in it, or new words."""

"""Steps 3 and 4, order and loader: `order` lays out the epoch, `micro_batches` splits a step over the ranks, `loader`
reads, augments and stacks the samples in worker processes, `packed_batch` brings them to the trainer's process."""

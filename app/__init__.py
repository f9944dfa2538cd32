"""The window: a form over TrainConfig and a view of the run folder; it never imports torch."""

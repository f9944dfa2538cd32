"""The desktop window: a form over TrainConfig and a view of the run folder. Never imports torch."""

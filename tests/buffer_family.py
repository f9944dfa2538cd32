"""A classifier that writes down BatchNorm's statistics, on each rank, whenever it is validated."""

from __future__ import annotations

import json
from pathlib import Path

import torch.distributed as dist

from modules.classification.options import ClassifierOptions
from modules.config import setting
from modules.data.batch import Batch
from modules.families import _family, classifier


class Options(ClassifierOptions):
    """And where to write."""

    record: str = setting("", title="Record", help="A folder.")


class RecordingClassifier(classifier.Classifier):
    """Adds a line to rank-N in the folder `record`: the sums of all statistics."""

    Options = Options

    def evaluate(self, batch: Batch) -> _family.Evaluation:
        """As the classifier."""
        assert isinstance(self.options, Options)
        sums = [float(value.double().sum()) for name, value in self.model.state_dict().items() if "running" in name]
        with (Path(self.options.record) / f"rank-{dist.get_rank()}").open("a", encoding="utf-8") as file:
            file.write(json.dumps(sums) + "\n")
        return super().evaluate(batch)

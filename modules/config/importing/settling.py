"""From collected values to a valid config: what Tandem refuses is taken out again and told."""

from __future__ import annotations

from pydantic import ValidationError

from modules.config.errors import ConfigError
from modules.config.explain import Fault, faults
from modules.config.importing.report import Imported
from modules.config.importing.translation import Translation
from modules.config.train_config import TrainConfig


def settle(translation: Translation) -> Imported:
    """The config and the report; values that break a rule of ours move to those that are not carried over."""
    while True:  # each round takes something out, and the defaults are valid
        try:
            config = TrainConfig.model_validate(translation.data)
        except ValidationError as error:
            found = faults(error)
            removed = [_withdraw(translation, fault) for fault in found]
            if not any(removed):
                raise ConfigError.from_faults(translation.trainer, [fault.sentence for fault in found]) from None
        else:
            return Imported(config, translation.report())


def _withdraw(translation: Translation, fault: Fault) -> bool:
    """Take the value with this fault out, or the nearest group around it that can be."""
    path = fault.path
    while path:
        if translation.withdraw(path, f"Tandem refuses it: {fault.sentence.rstrip('.')}"):
            return True
        path = path.rpartition(".")[0]
    return False

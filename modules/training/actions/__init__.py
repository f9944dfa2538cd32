"""What happens between steps: one table, in the order in which actions that are due at the same step run.

To add one, write a file like those of the seven here and give it a row in the table; its interval is a setting.
`modules/run` repeats the names of the actions that can be requested, because it must not import torch; a test compares.
"""

from modules.training.actions.action import Action, ActionContext
from modules.training.actions.backup import BACKUP
from modules.training.actions.best import KEEP_BEST, restore_best
from modules.training.actions.custom_sample import CUSTOM_SAMPLE
from modules.training.actions.runner import ActionRunner, due_actions
from modules.training.actions.sample import SAMPLE
from modules.training.actions.save import SAVE
from modules.training.actions.save_along import SAVE_ALONG
from modules.training.actions.validate import VALIDATE, evaluate

ACTIONS: tuple[Action, ...] = (VALIDATE, KEEP_BEST, SAMPLE, CUSTOM_SAMPLE, BACKUP, SAVE_ALONG, SAVE)

__all__ = [
    "ACTIONS",
    "BACKUP",
    "CUSTOM_SAMPLE",
    "KEEP_BEST",
    "SAMPLE",
    "SAVE",
    "SAVE_ALONG",
    "VALIDATE",
    "Action",
    "ActionContext",
    "ActionRunner",
    "due_actions",
    "evaluate",
    "restore_best",
]

"""Every sentence of the window that is not declared with the settings, a module for each part: for translation."""

from app.texts.base_model import *  # noqa: F403
from app.texts.cards import *  # noqa: F403
from app.texts.files import *  # noqa: F403
from app.texts.form import *  # noqa: F403
from app.texts.importing import *  # noqa: F403
from app.texts.monitor import *  # noqa: F403
from app.texts.multi_gpu import *  # noqa: F403
from app.texts.pictures import *  # noqa: F403
from app.texts.runs import *  # noqa: F403
from app.texts.start import *  # noqa: F403
from app.texts.welcome import *  # noqa: F403
from app.texts.window import *  # noqa: F403

"""The verbs of ``bunqueue store``. Importing their modules adds them to the group."""

from . import database, folder
from .options import app

__all__ = ["app", "database", "folder"]

"""The verbs of ``bunqueue store``: importing their modules puts them into the group."""

from . import database, folder
from .options import app

__all__ = ["app", "database", "folder"]

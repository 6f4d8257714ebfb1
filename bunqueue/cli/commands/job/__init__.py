"""``bunqueue job``: one job, or those that a search finds."""

from . import find as find
from .one import app as app

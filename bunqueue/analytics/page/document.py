"""The report as one self-contained file: no script, no font, no other host."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from bunqueue.analytics import words
from bunqueue.analytics.page import headline, sections, work
from bunqueue.analytics.page.figures import Figures

_SECTIONS = (
    headline.heading,
    headline.lead,
    headline.tiles,
    headline.unusual,
    sections.over_time,
    sections.queues,
    sections.failures,
    work.names,
    work.workers,
    work.slowest,
    work.fine_print,
)


def document(figures: Figures) -> str:
    """The whole page as HTML."""
    about = figures.about
    title = f"Job queues, {words.stretch(about.since, about.until, about.zone)}"
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    body = "\n".join(filter(None, (section(figures) for section in _SECTIONS)))
    return (
        "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )

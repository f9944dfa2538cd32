"""report.html: what a run trained, how, and what came of it, as one file that needs no network and no program."""

from modules.run.html_report.contents import update_report, write_report

__all__ = ["update_report", "write_report"]

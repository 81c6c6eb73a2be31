"""The report page: one HTML file that shows what `compare` found."""

from leanbayes.report.write import write_report

__all__ = ["write_report"]

"""What a run tells people: samples while it trains, and one report at its end."""

from vitcap.report.make import write_report

__all__ = ["write_report"]

"""What a model attended to, as records: `explain` makes one for a picture or a sentence."""

from vitcap.explain.records import explain, explain_all

__all__ = ["explain", "explain_all"]

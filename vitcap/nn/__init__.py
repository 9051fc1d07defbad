"""Layers: attention, positions, Transformer blocks."""

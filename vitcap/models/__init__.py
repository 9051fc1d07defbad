"""Encoders, decoders, and the captioning model that joins them."""

"""Models for other programs: ONNX files that need no torch, safetensors with smaller weights, the layout of model hubs.

`to_onnx` is in vitcap.export.bundle, `to_hub` and `push_to_hub` in vitcap.export.hub. `vitcap.export.runtime` reads the
ONNX files; it imports nothing of vitcap and no torch, and a copy of it lies in every exported folder.
"""

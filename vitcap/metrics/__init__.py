"""Caption metrics as the COCO caption evaluation computes them."""

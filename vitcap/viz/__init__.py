"""Where a model looked, drawn over the photo."""

"""Sources, transforms, tokenizers and loaders of captioned pictures."""

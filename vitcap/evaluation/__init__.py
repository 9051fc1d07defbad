"""Models against splits: what they write or predict, its scores, and how those were obtained."""

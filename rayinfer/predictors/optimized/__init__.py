"""Optimized forms of predictors: exported graphs and fewer bits, verified before they are written."""

"""Grammars of structured outputs: their specification, compilation by llguidance, and checks."""

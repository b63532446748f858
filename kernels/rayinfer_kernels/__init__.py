"""Fast tensor operations behind one door, `ops`, each with a plain-torch reference."""

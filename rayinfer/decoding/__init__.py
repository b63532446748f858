"""How the next token is chosen from a row of logits."""

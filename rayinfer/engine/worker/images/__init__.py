"""Images of prompts: their encoder beside the steps, and their embeddings in these."""

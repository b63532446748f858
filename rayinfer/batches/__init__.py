"""Files and batches of OpenAI's Batches API: their store, the claims of rows by routers, and their owner."""

"""Sinks of rows, which a job cuts back to its last checkpoint: JSONL, compressed JSONL, Parquet, SQLite."""

"""Sources of rows: JSONL, CSV, text, Parquet, data set folders, on local disks and object stores."""

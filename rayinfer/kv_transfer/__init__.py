"""Transport of KV blocks between machines: blocks of one machine's store, fetched into that of another over TCP."""

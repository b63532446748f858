"""The KV block store of a machine: blocks that all engines of a model share, in shared memory and on the disk."""

"""Storage of jobs: durable local files and object stores behind one small interface."""

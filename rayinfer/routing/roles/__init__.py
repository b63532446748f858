"""Roles of engines: long prompts on some, their streams on others, and where blocks come from."""

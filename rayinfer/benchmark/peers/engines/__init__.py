"""Scripts that run in the measured system's own interpreter: started as files, never imported."""

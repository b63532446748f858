"""What runs in a process of its own, under the interpreter of what is measured: started as files, never imported."""

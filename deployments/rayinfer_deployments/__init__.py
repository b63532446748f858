"""Ray Serve applications, Ray actors and the command line: where everything is wired together."""

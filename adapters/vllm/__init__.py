"""vLLM behind the `Engine` port: in a process of ours, or behind its HTTP server."""

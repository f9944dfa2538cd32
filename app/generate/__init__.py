"""Generating images without a run: settings, prompt history, the process that generates, and the page's parts."""

"""Generators of pages: pure functions from the package to Markdown, which need no mkdocs."""

"""The documentation site: what `python -m website` gathers in build/pages, mkdocs.yml makes a site of."""

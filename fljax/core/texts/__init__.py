"""Texts that leave fljax: pages, terminals and tables, which what a text says must not drive."""

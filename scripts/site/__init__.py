"""The documentation site: `python -m scripts.site` builds it, `make docs` runs that.

- `nav.py` reads which pages there are from docs/nav.toml, and writes the tables of them.
- `pages.py` copies the Markdown pages and points their links at pages of the site.
- `api_pages.py` and `command_pages.py` write the reference.
- `result.py` checks what the generator made, and gives it its version.
"""

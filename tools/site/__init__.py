"""The documentation as a site: `make docs`.

The pages in docs/ are written for any reader of Markdown. This package copies them to build/docs in
the form that the generator of the site needs, adds the references that are made from the code, and
checks what was built.
"""

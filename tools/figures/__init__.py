"""The figures of the documentation, as SVG: `make figures` draws them all again."""

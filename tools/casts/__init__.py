"""Terminal casts of the documentation, as animated SVG: `make casts` records them all again."""

"""The web pages at `/`: a plain start page for now."""

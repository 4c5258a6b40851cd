"""Markdown, HTML, figures and terminal tables, all from domain facts."""

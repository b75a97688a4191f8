"""Shows calls and states: tables for a terminal, pages for a browser."""

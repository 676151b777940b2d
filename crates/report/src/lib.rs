//! Ledgers and comparisons as people and programs read them: table, JSON, CSV and markdown.

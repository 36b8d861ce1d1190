"""What a user reads: sentences, tables in several formats, charts and the HTML page."""

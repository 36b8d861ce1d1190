"""What a user reads: tables in several formats, progress, plots, pictures, the HTML page."""

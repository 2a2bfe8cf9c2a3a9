"""The report of an audit: one HTML page that works offline."""

"""The forms of a report besides the page. Each one sets the same tables and escapes what users named."""

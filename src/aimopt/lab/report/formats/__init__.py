"""The formats of a report besides the web page: `csv_text`, `latex`, `markdown`, `terminal`.

Each one lays out the same tables, and escapes the names that users gave.
"""

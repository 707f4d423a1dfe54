"""The report as a web page: page.py fills the template page.html with page.css and page.js."""

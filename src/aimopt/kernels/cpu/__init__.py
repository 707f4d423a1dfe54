"""Programs on CPUs: a C++ library that interprets them, the header that it shares with Python, and its loading."""

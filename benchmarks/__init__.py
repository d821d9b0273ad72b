"""Scripts that print the figures of the pages; `writing` serves the tests as well."""

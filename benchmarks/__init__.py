"""Scripts that print the figures of the pages; the tests use `writing` as well."""

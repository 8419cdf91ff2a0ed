"""From the sources of a `load_inline` call to a library, in jailed builders, with a cache."""

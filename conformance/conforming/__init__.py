"""Everything that is wrong with somebody's manager: the search, the suite, the declarations."""

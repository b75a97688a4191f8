"""Independent models of the block manager, and the comparison of their counts with ours."""

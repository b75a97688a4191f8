"""Production against every state of a small world; searches over processes; proofs."""

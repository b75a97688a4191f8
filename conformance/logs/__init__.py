"""The operation log: written while a manager runs, checked and made again later."""

"""`psf run`: starts the ranks of one script, shows what they print, and ends them together."""

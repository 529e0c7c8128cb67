"""What each party keeps on its disk, and the sessions over it."""

"""What is learnt: a folder for each system, with the halves of its parties."""

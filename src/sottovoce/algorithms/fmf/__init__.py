"""FMF-LDP, matrix factorisation by randomised reports."""

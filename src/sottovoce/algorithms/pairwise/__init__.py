"""The pair-wise step that FPL and BPR-MF share."""

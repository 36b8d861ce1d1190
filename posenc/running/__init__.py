"""One job: validated, trained or measured, stored in its run directory."""

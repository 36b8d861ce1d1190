"""Run jobs: validate, train or measure, and store the results in run directories."""

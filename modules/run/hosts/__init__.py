"""Other machines that Tandem starts itself over ssh: their list, their test, and their part of a run."""

"""Bad and odd inputs: each has an exit code and one line that says what and the next step; none loses anything."""

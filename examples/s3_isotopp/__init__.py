"""S3. Kristian Köhntopp 2021, "A job queue in Python": the shape of this project."""

"""What is decided about jobs: each rule is one pure function or table."""

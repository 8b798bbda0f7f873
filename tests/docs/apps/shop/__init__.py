"""The application that the guide's commands name: `jq-worker shop.jobs:billing`."""

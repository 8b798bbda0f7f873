"""What the dashboard's pages and its JSON API show, as frozen records.

Each file has the records of one subject and the functions that read them. A function takes a
`View`, which is the store as one caller may use it, and makes a bounded number of bounded store
calls. Times are milliseconds since the epoch, and durations are milliseconds.
"""

"""What operators do, each operation once: functions over a store and who acts.

`api`, `cli`, the services of jq-server, the dashboard and Django's admin check and shape what they
are given and what they return, and call these. Any store of the contract will do: a guarded store
refuses what its caller may not do.
"""

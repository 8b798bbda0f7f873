"""How fast, side by side: jobq on any store and its peers, each in processes of its own, in one run. See README.md here."""

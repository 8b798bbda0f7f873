"""An application of several modules. Nothing imports all of them."""

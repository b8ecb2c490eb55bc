"""One module for each `./lab bench NAME`."""

"""Images: building the shipped ones, keeping, checking and removing them."""

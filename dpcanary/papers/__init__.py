"""One folder a paper, which registers what is in it as other packages do; nothing imports it."""

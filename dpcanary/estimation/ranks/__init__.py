"""Lower bounds on epsilon from the ranks of secrets whose law is known."""

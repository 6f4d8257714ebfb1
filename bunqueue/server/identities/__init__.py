"""Who may use the server: identities, their tokens and certificates, and the file that names them."""

"""What was found, against prediction, published figures and relations."""

"""Who of a course waits, holds a slice or idles, and which experiments they have claimed."""

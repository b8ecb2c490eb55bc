"""How a student's container is limited, labelled and connected, and one that measures."""

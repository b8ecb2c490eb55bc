"""How a student's container is limited, labelled and connected."""

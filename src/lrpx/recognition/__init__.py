"""What an operation is: by its name, by what its operands came out of, or with the others of its module."""

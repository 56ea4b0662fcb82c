"""What travels between members as plain values: arguments, results, modules, types of the user's."""

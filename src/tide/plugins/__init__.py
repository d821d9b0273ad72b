"""How parts are named, found and given options: registry, specs, options."""
